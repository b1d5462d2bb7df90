"""Tracebacks of a log, as their lines come by: Python's, rich's, and those that Ray and torchrun repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, MOST_SPEAKERS, NOBODY, LogLine, Speaker, keep
from nsadiag.analysis.ingest.messages.prefixes import speaker_of
from nsadiag.evidence.documents.exceptions import Cause, TracebackFrame

TRACEBACK = "Traceback (most recent call last):"
RICH = re.compile(r"^╭─+.*Traceback \(most recent call last\)")
CHAINS = {
    "The above exception was the direct cause of the following exception:": True,
    "During handling of the above exception, another exception occurred:": False,
}
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
RICH_FRAME = re.compile(r"^│ (?P<file>[^\s│][^│]*?):(?P<line>\d+) in (?P<function>[\w<>.]+)")
RICH_CODE = re.compile(r"^│ ❱ *\d+ [│ ]?(?P<code>.*?) *│?$")
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:\(\w+\))?)(?:: (?P<message>.*))?$")
# A word at the begin of another process's line is none of these, where lines may come in between.
SURELY_RAISED = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout)|[A-Za-z_]\w*\.[\w.]+)(?:\(\w+\))?(?::|$)"
)
# Ray's own says what a task raised: its frames, and the exception, follow.
TASK = re.compile(r"RayTaskError\(\w+\): .*?\(pid=(?P<pid>\d{1,9}), ip=(?P<host>[\w.:-]+)")
# A distributed checkpoint's, of which every rank gets the tracebacks of those that failed.
OF_A_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (?P<rank>\d{1,9})\)")
# Launchers' own, and of what ranks do together, which say that some rank has failed, or repeat its traceback below.
LAUNCHERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CheckpointException")
# Of accelerate and DeepSpeed it has the type of any command that failed.
COMMAND_FAILED = "CalledProcessError"
LAUNCHED = re.compile(r"/accelerate/commands/launch\.py$|/deepspeed/launcher/\w+\.py$")
SPAWNER = re.compile(r"/torch/multiprocessing/spawn\.py$")  # of torch 1.4, before it had a type of its own
AGENT = re.compile(r"/torch/distributed/launcher/api\.py$")
SPAWNED = re.compile(r"^-- Process (?P<local>\d{1,6}) terminated with the following error:")
TABLES = re.compile(r"^(?P<indent> +)traceback : (?=Traceback)")
# Lines below the exception's first that belong to its message.
CONTINUES = re.compile(
    r"^(?:\s+\S|Last error:|nccl\w+: |CUDA kernel errors|For debugging consider|Compile with `|Device-side assertion|Search for `cuda"
    r"|Exception raised from |frame #\d+: |Parameter(?:s| indices) |In addition, you can set|You can enable unused|making sure all `?forward|If you already have done the above|Original Traceback"
    r"|Memory on the node|Ray killed this worker|Refer to the documentation|The actor (?:is dead|died|never)|This error (?:indicates|is caused))"
)
IN_C = re.compile(
    r"^(?:frame #\d+: |Exception raised from )"
)  # the stack below an error of C++: names, and no words
AFTER = ("Last error:",)  # whose next line belongs to it, whatever it says
ORIGINAL = "Original Traceback (most recent call last):"
MOST_FRAMES = 2000  # Python folds deeper recursion
MOST_LINES_BETWEEN = 500  # of others, before a block counts as cut off
MOST_MESSAGE = 16 * 1024  # characters
CUT = "the log does not have its last line"


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """One traceback of a log, with those from which its exception came."""

    rank: int | None
    line: int  # of the log, where it begins
    exception: Cause
    speaker: Speaker = NOBODY
    time: str = ""  # as its first line has it
    is_stated: bool = False  # the error's own words, without a traceback


@dataclass
class _Open:
    """A traceback whose last line has not come yet."""

    line: int
    last: int  # line that was its own
    speaker: Speaker
    time: str = ""
    indent: int = 0
    frames: list[TracebackFrame] = field(default_factory=list)


@dataclass
class _Message:
    """The exception that a speaker wrote last, while its message may go on."""

    index: int
    last: int
    is_due: bool = False  # the next line belongs to it
    in_original: bool = False  # in the traceback of a loader's worker, which is part of the message


class Tracebacks:
    """Each with what it was raised from as its cause; the launcher's own left out."""

    def __init__(self) -> None:
        self._found: list[Traceback | None] = []
        self._open: dict[Speaker, _Open] = {}
        self._messages: dict[Speaker, _Message] = {}
        self._causes: dict[Speaker, Cause] = {}
        self._spawned: Speaker | None = None  # whose traceback comes next

    @property
    def is_busy(self) -> bool:
        """Whether some block may go on in the next line."""
        return bool(self._open or self._messages)

    def found(self) -> list[Traceback]:
        """All of the log so far, those that are cut off among them."""
        for speaker in [*self._open]:
            self._cut(speaker)
        return [each for each in self._found if each is not None]

    def read(self, line: LogLine, owner: Speaker | None = None) -> bool:
        """Take the next line of the log; returns whether it is part of a traceback. `owner`: whose it is, in a table of failures."""
        self._expire(line.number)
        if self._continues(line):
            return True
        if TRACEBACK in line.said or RICH.match(line.said):
            self._begin(line, self._spawned or _named(line) or (owner if TABLES.match(line.said) else None))
            self._spawned = None
            return True
        if spawned := SPAWNED.match(line.said):
            self._spawned = speaker_of(None, int(spawned["local"]), None, line.speaker.host, "")
            return True
        if line.speaker in self._open:
            return self._take(line, self._open[line.speaker])
        if line.said.strip() in CHAINS:
            self._chain(line)
            return True
        if FRAME.match(line.said):
            # The log begins within a traceback.
            self._begin(line, None)
            return self._take(line, self._open[line.speaker])
        return False

    def _begin(self, line: LogLine, owner: Speaker | None) -> None:
        if line.speaker in self._open:
            self._cut(line.speaker)
        table = TABLES.match(line.said)
        if len(self._open) < MOST_SPEAKERS:
            self._open[line.speaker] = _Open(
                line=line.number,
                last=line.number,
                speaker=owner or line.speaker,
                time=line.prefix.time,
                indent=len(table["indent"]) if table else _indent(line.said),
            )

    def _take(self, line: LogLine, block: _Open) -> bool:
        said = line.said
        if block.indent and said[: block.indent].isspace():
            said = said[block.indent :]
        follows = line.number - block.last <= 1
        if _is_frame(said, block.frames):
            block.last = line.number
            return True
        if said[:1] in (" ", "│", "╰", ""):
            return False
        raised = RAISED.match(said)
        # Of one without a frame, as a search for errors leaves it, the next line is the error if it reads like one.
        surely = bool(SURELY_RAISED.match(said))
        if raised and (surely or follows if block.frames else surely and follows):
            self._close(line, raised, said)
            return True
        if said.strip() in CHAINS:
            self._cut(line.speaker)
        return False

    def _close(self, line: LogLine, raised: re.Match[str], said: str) -> None:
        done = self._open.pop(line.speaker)
        if task := TASK.search(said):
            # What the task raised comes next, with the frames of its own process.
            remote = speaker_of(None, None, int(task["pid"]), task["host"], "")
            self._open[line.speaker] = _Open(
                line=line.number, last=line.number, speaker=remote, time=done.time
            )
            return
        exception = Cause(
            type=raised["type"].partition("(")[0].rpartition(".")[2],
            message=raised["message"] or "",
            frames=tuple(done.frames),
            cause=self._causes.pop(line.speaker, None),
        )
        echo = exception.type == COMMAND_FAILED and _is_of(LAUNCHED, done.frames)
        echo = echo or (exception.type == "Exception" and _is_of(SPAWNER, done.frames[-1:]))
        if exception.type not in LAUNCHERS and not echo:
            self._add(
                line,
                Traceback(
                    rank=None, line=done.line, exception=exception, speaker=done.speaker, time=done.time
                ),
            )

    def state(self, line: LogLine, exception: Cause) -> None:
        """Take an error whose words alone are in the log; the lines below may belong to it."""
        said = Traceback(
            rank=None, line=line.number, exception=exception, speaker=line.speaker, time=line.prefix.time,
            is_stated=True,
        )  # fmt: skip
        self._add(line, said)

    def _add(self, line: LogLine, traceback: Traceback) -> None:
        if len(self._found) < MOST_FACTS:
            self._found.append(traceback)
            is_due = traceback.exception.message.endswith(":")
            self._messages[line.speaker] = _Message(
                index=len(self._found) - 1, last=line.number, is_due=is_due
            )

    def _continues(self, line: LogLine) -> bool:
        message = self._messages.get(line.speaker)
        if message is None:
            return False
        said = line.said.rstrip()
        is_next = line.number - message.last <= 1 or line.speaker != NOBODY
        begins_another = said.strip() in CHAINS or (TRACEBACK in said and said.strip() != ORIGINAL)
        belongs = message.is_due or message.in_original or CONTINUES.match(said)
        if not said or begins_another or not is_next or not belongs:
            del self._messages[line.speaker]
            return False
        before = self._found[message.index]
        assert before is not None
        if not IN_C.match(said):
            whole = f"{before.exception.message}\n{said}"[:MOST_MESSAGE]
            self._found[message.index] = replace(before, exception=replace(before.exception, message=whole))
        message.last, message.is_due = line.number, said.strip() in AFTER
        if said.strip() == ORIGINAL:
            message.in_original = True
        elif message.in_original and not said.startswith(" ") and RAISED.match(said):
            message.in_original = False
        return True

    def _chain(self, line: LogLine) -> None:
        places = range(len(self._found) - 1, -1, -1)
        mine = (n for n in places if (each := self._found[n]) and each.speaker == line.speaker)
        if (place := next(mine, None)) is not None and (before := self._found[place]):
            self._found[place] = None
            self._causes[line.speaker] = replace(before.exception, meant=CHAINS[line.said.strip()])

    def _cut(self, speaker: Speaker) -> None:
        block = self._open.pop(speaker)
        if block.frames and len(self._found) < MOST_FACTS and not _is_of(AGENT, block.frames):
            exception = Cause(
                type="Exception",
                message=CUT,
                frames=tuple(block.frames),
                cause=self._causes.pop(speaker, None),
            )
            self._found.append(
                Traceback(
                    rank=None, line=block.line, exception=exception, speaker=block.speaker, time=block.time
                )
            )

    def _expire(self, number: int) -> None:
        if self._open and number % 64 == 0:
            for speaker, block in [*self._open.items()]:
                if number - block.last > MOST_LINES_BETWEEN:
                    self._cut(speaker)
        if self._messages and number % 64 == 0:
            old = [s for s, each in self._messages.items() if number - each.last > MOST_LINES_BETWEEN]
            for speaker in old:
                del self._messages[speaker]


def _named(line: LogLine) -> Speaker | None:
    """The process that a traceback is of, where its own first line says it."""
    found = OF_A_RANK.search(line.said)
    return speaker_of(int(found["rank"]), None, None, "", "") if found else None


def _is_frame(said: str, frames: list[TracebackFrame]) -> bool:
    """Whether the line is a frame, or its code, which are put with the others."""
    frame = FRAME.match(said) or RICH_FRAME.match(said)
    if frame:
        file, line, function = frame["file"], int(frame["line"]), frame["function"]
        keep(frames, TracebackFrame(file=file, line=line, function=function), MOST_FRAMES)
        return True
    if not frames:
        return said.startswith("│")
    if (code := RICH_CODE.match(said)) and not frames[-1].code:
        frames[-1] = replace(frames[-1], code=code["code"].strip())
        return True
    if said.startswith("    "):
        if not frames[-1].code and said.strip(" ^~"):
            frames[-1] = replace(frames[-1], code=said.strip())
        return True
    return said.startswith(("│", "╰", "  [Previous line repeated"))


def _indent(said: str) -> int:
    """Blanks before a traceback that is indented as a whole."""
    return len(said) - len(said.lstrip(" ")) if said.lstrip(" ").startswith(TRACEBACK) else 0


def _is_of(pattern: re.Pattern[str], frames: list[TracebackFrame]) -> bool:
    return any(pattern.search(frame.file) for frame in frames)
