"""The last lines of each rank, and the last stacks that its faulthandler wrote."""

from __future__ import annotations

import re
from collections import deque

from nsadiag.analysis.ingest.messages.lines import MOST_SPEAKERS, LogLine
from nsadiag.evidence.stacks import FAULT_FRAME, FAULT_THREAD

LOG_TAIL_BYTES = 64 * 1024
ALL_TAILS_BYTES = 64 * 2**20  # of all ranks together
FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$")
MOST_STACK_LINES = 20_000


class Tail:
    """The last lines of a text, at most so many characters of them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str, most: int = LOG_TAIL_BYTES) -> None:
        """Append a line, and drop those that are too far back."""
        self._lines.append(line[-most:])
        self._size += min(len(line), most) + 1
        while self._size > most and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1

    def __str__(self) -> str:
        return "\n".join(self._lines)


class Tails:
    """Those of all ranks that wrote in a log, and of the whole log."""

    def __init__(self) -> None:
        self.all = Tail()
        self.of: dict[int, Tail] = {}

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        self.all.add(line.said)
        if line.rank is not None and (line.rank in self.of or len(self.of) < MOST_SPEAKERS):
            share = ALL_TAILS_BYTES // max(len(self.of), 1)
            self.of.setdefault(line.rank, Tail()).add(line.said, min(LOG_TAIL_BYTES, share))


class Faults:
    """faulthandler's text, by rank: its last dump of threads that shows a frame."""

    def __init__(self) -> None:
        self.fatal: set[int | None] = set()
        self.last: dict[int | None, list[str]] = {}
        self._open: dict[int | None, list[str]] = {}

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        if FATAL.match(line.said):
            self.fatal.add(line.rank)
        begins = FAULT_THREAD.match(line.said)
        own = self._open.get(line.rank)
        if own is None:
            if begins and len(self._open) < MOST_SPEAKERS:
                self._open[line.rank] = [line.said]
        elif begins or not line.said.strip() or line.said.startswith("  "):
            if len(own) < MOST_STACK_LINES:
                own.append(line.said)
        else:
            self._close(line.rank)

    def texts(self) -> dict[int | None, str]:
        """The dumps, as faulthandler wrote them."""
        for rank in [*self._open]:
            self._close(rank)
        return {rank: "\n".join(lines) for rank, lines in self.last.items()}

    def _close(self, rank: int | None) -> None:
        lines = self._open.pop(rank)
        if any(FAULT_FRAME.match(line) for line in lines):
            self.last[rank] = lines
