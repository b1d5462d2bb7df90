"""Tracebacks of a log, as their lines come by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, MOST_SPEAKERS, LogLine
from nsadiag.evidence.documents.exceptions import Cause, TracebackFrame

TRACEBACK = "Traceback (most recent call last):"
CHAINS = {
    "The above exception was the direct cause of the following exception:": True,
    "During handling of the above exception, another exception occurred:": False,
}
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
LAUNCHERS = "ChildFailedError"  # torchrun's own, which says that some rank has failed
MOST_FRAMES = 2000  # Python folds deeper recursion


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """One traceback of a log, with those from which its exception came."""

    rank: int | None
    line: int  # of the log, where it begins
    exception: Cause


@dataclass
class _Open:
    """A traceback whose last line has not come yet."""

    line: int
    frames: list[TracebackFrame] = field(default_factory=list)


class Tracebacks:
    """Each with what it was raised from as its cause; the launcher's own left out."""

    def __init__(self) -> None:
        self.found: list[Traceback] = []
        self._open: dict[int | None, _Open] = {}
        self._causes: dict[int | None, Cause] = {}

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        if TRACEBACK in line.said:
            if len(self._open) < MOST_SPEAKERS:
                self._open[line.rank] = _Open(line.number)
        elif line.rank in self._open:
            if raised := _read_line(line.said, self._open[line.rank].frames):
                self._close(line.rank, raised)
        elif line.said.strip() in CHAINS:
            self._chain(line)

    def _close(self, rank: int | None, raised: re.Match[str]) -> None:
        done = self._open.pop(rank)
        exception = Cause(
            type=raised["type"].rpartition(".")[2],
            message=raised["message"] or "",
            frames=tuple(done.frames),
            cause=self._causes.pop(rank, None),
        )
        if exception.type != LAUNCHERS and len(self.found) < MOST_FACTS:
            self.found.append(Traceback(rank=rank, line=done.line, exception=exception))

    def _chain(self, line: LogLine) -> None:
        before = next((each for each in reversed(self.found) if each.rank == line.rank), None)
        if before is not None:
            self.found.remove(before)
            self._causes[line.rank] = replace(before.exception, meant=CHAINS[line.said.strip()])


def _read_line(said: str, frames: list[TracebackFrame]) -> re.Match[str] | None:
    """A frame, its code, or the exception itself, which ends the traceback."""
    frame = FRAME.match(said)
    if frame and len(frames) < MOST_FRAMES:
        file, line_number, function = frame["file"], int(frame["line"]), frame["function"]
        frames.append(TracebackFrame(file=file, line=line_number, function=function))
    elif said.startswith("    ") and frames and not frames[-1].code and said.strip(" ^~"):
        frames[-1] = replace(frames[-1], code=said.strip())
    elif frames and not said.startswith(" "):
        return RAISED.match(said)
    return None
