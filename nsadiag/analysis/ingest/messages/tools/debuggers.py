"""Native stacks that gdb, cuda-gdb or lldb print of a process (`thread apply all bt`), and the Python lines of `py-bt`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nsadiag.analysis.ingest.messages.lines import LogLine, keep
from nsadiag.evidence.documents.exceptions import TracebackFrame
from nsadiag.evidence.messages import NativeStack

# gdb: `Thread 58 (Thread 0x15535d20d700 (LWP 1823817) "pt_main"):`; lldb: `* thread #1, name = 'python'`.
THREAD = re.compile(
    r"^(?:Thread (?P<gdb>\d{1,6}) \((?:Thread 0x[0-9a-f]+ )?\(?LWP (?P<lwp>\d{1,9})\)?|\*? *thread #(?P<lldb>\d{1,6})\b)"
)
ATTACHED = re.compile(
    r"(?:Attaching to process|Attaching to program:.*, process|\bgdb\b.* -p) (?P<pid>\d{1,9})"
)
# What every frame of a debugger's has, and no other stack: arguments in brackets, or a library in lldb's words.
FRAME = re.compile(
    r"^#(?P<number>\d{1,4}) +(?:0x[0-9a-f]+ in )?(?P<name>[^\s(]+(?:\([^()]*\)<<<[^>]*>>>)?) ?\(.*\)(?: (?:at|from) (?P<where>\S+))?"
)
FRAME_OF_LLDB = re.compile(
    r"^ *\*? frame #(?P<number>\d{1,4}): 0x[0-9a-f]+ (?P<where>\S+)`(?P<name>[^\s(+]+)"
)
# `py-bt` of gdb's Python extension.
PYTHON = re.compile(
    r'^(?:#\d+ (?:<built-in method .*>)?(?:Frame 0x[0-9a-f]+, for )?| +)[Ff]ile "?(?P<file>[^",]+)"?, line (?P<line>\d{1,7}), in (?P<function>[\w<>.]+)'
)
KERNEL = re.compile(r"^\*? +\d+ +\S+ +\d+ +\d+ Active .* (?P<name>\w+)\(\)$")
# What asks for it, or begins its answer: of the thread that the debugger stands in, which is the main one unless it was told otherwise.
ASKED_FOR_PYTHON = re.compile(r"^(?:\(gdb\) )?py-bt\s*$|^Traceback \(most recent call first\):")
# A line of somebody's own above a process: `=== rank 3 ===`, `# Rank 3 (node a)`.
HEADING = re.compile(r"^\W*(?i:global[_ ])?(?i:rank)\W{0,3}(\d{1,7})\b")
MOST_HEADING = 60  # characters
HEADED = 8  # lines below it in which its process begins
NAMELESS = ("??", "<signal handler called>")
MOST_THREADS = 2_000
MOST_FRAMES = 400


@dataclass
class _Thread:
    line: int
    text: str
    lwp: int | None = None
    number: int | None = None
    pid: int | None = None
    rank: int | None = None
    functions: list[str] = field(default_factory=list)
    frames: list[TracebackFrame] = field(default_factory=list)


class Debuggers:
    """The stack of each thread, innermost call first."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._open: _Thread | None = None
        self._pid: int | None = None
        self._rank: int | None = None  # of the process whose threads come
        self._heading = (0, -1)  # line and rank of the last one

    @property
    def is_busy(self) -> bool:
        """Whether more frames may come."""
        return self._open is not None

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of a debugger's."""
        said = line.text
        if "rocess" in said and (attached := ATTACHED.search(said)):
            self._pid = int(attached["pid"])
            self._rank = self._headed(line.number)
            return True
        if len(said) < MOST_HEADING and (heading := HEADING.match(said)):
            self._heading, self._open = (line.number, int(heading[1])), None
            return False
        if "hread" in said and (begins := THREAD.match(said)):
            number = begins["gdb"] or begins["lldb"]
            self._begin(
                _Thread(line.number, said, int(begins["lwp"]) if begins["lwp"] else None, int(number))
            )
            return True
        if said.endswith("()") and (kernel := KERNEL.match(said)):
            self._begin(_Thread(line.number, said, functions=[kernel["name"]]))
            self._open = None
            return True
        return self._frame(line)

    def _frame(self, line: LogLine) -> bool:
        said = line.text
        frame = None
        if said.startswith("#"):
            frame = FRAME.match(said)
        elif self._open and "frame #" in said:
            frame = FRAME_OF_LLDB.match(said)
        if frame:
            if self._open is None:
                if frame["number"] != "0" or not said.startswith("#0  "):
                    return False
                self._begin(_Thread(line.number, said))
            assert self._open is not None
            if frame["name"] not in NAMELESS:
                keep(self._open.functions, frame["name"], MOST_FRAMES)
            return True
        if self._open is None and self._threads and ASKED_FOR_PYTHON.match(said):
            mine = [t for t in self._threads if t.pid == self._pid and t.rank == self._rank]
            self._open = next((t for t in reversed(mine) if t.number in (1, None)), None)
            return self._open is not None
        if self._open and (python := PYTHON.match(said)):
            at = TracebackFrame(file=python["file"], line=int(python["line"]), function=python["function"])
            self._open.frames.append(at)
            return True
        if not said.strip():
            self._open = None
        return False

    def _headed(self, number: int) -> int | None:
        """The rank in a heading just above; that of the process so far where there is none."""
        above, rank = self._heading
        return rank if rank >= 0 and number - above <= HEADED else self._rank

    def _begin(self, thread: _Thread) -> None:
        self._rank = self._headed(thread.line)
        thread.pid, thread.rank = self._pid, self._rank
        self._open = thread
        keep(self._threads, thread, MOST_THREADS)

    def found(self) -> list[NativeStack]:
        """One fact a thread of which some function has a name."""
        first = next((t.lwp for t in self._threads if t.number == 1 and t.lwp), None)
        return [
            NativeStack(
                line=each.line, text=each.text, pid=each.pid or first, rank=each.rank, thread=each.number, functions=tuple(each.functions),
                frames=tuple(each.frames[::-1]),
            )
            for each in self._threads if each.functions or each.frames
        ]  # fmt: skip
