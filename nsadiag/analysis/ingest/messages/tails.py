"""The last lines of each process, and the last stacks that its faulthandler wrote."""

from __future__ import annotations

import re

from nsadiag.analysis.ingest.messages.lines import MOST_SPEAKERS, NOBODY, LogLine, Speaker, keep
from nsadiag.evidence.stacks import FAULT_FRAME, FAULT_THREAD

LOG_TAIL_BYTES = 64 * 1024
ALL_TAILS_BYTES = 64 * 2**20  # of all processes together
FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$")
MOST_STACK_LINES = 20_000
TRIMMED_AFTER = 512  # lines, of which a long one counts as many
LONG_LINE = 512
BELONGS = ("  ", "Extension modules:", "Current thread's C stack", "<")


class Tail:
    """The last lines of a text, at most so many characters of them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._most = LOG_TAIL_BYTES
        self._due = TRIMMED_AFTER  # lines until those too far back are dropped

    def add(self, line: str, most: int = LOG_TAIL_BYTES) -> None:
        """Append a line."""
        self._most = most
        self._lines.append(line)
        self._due -= 1 + len(line) // LONG_LINE
        if self._due <= 0:
            self._trim()

    def _trim(self) -> None:
        self._due, left, kept = TRIMMED_AFTER, self._most, 0
        while kept < len(self._lines) and left > 0:
            kept += 1
            left -= len(self._lines[-kept]) + 1
        # The first line that is too far back, unless it is the only one.
        kept = max(kept - 1, 1) if left < 0 else kept
        self._lines = [line[-self._most :] for line in self._lines[len(self._lines) - kept :]]

    def __str__(self) -> str:
        self._trim()
        return "\n".join(self._lines)


class Tails:
    """Those of all processes that wrote in a log, and of the whole log."""

    def __init__(self) -> None:
        self.all = Tail()
        self.of: dict[Speaker, Tail] = {}
        self._most = LOG_TAIL_BYTES

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        self.all.add(line.said)
        if line.speaker is NOBODY:
            return
        tail = self.of.get(line.speaker)
        if tail is None:
            if len(self.of) >= MOST_SPEAKERS:
                return
            tail = self.of[line.speaker] = Tail()
            self._most = min(LOG_TAIL_BYTES, ALL_TAILS_BYTES // len(self.of))
        tail.add(line.said, self._most)


class Faults:
    """faulthandler's text, by process: its last dump of threads that shows a frame."""

    def __init__(self) -> None:
        self.fatal: dict[Speaker, str] = {}
        self.last: dict[Speaker, list[str]] = {}
        self._open: dict[Speaker, list[str]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether some dump may go on in the next line."""
        return bool(self._open)

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of faulthandler's."""
        said = line.said
        if fatal := FATAL.match(said):
            self.fatal.setdefault(line.speaker, fatal["what"])
            return True
        own = self._open.get(line.speaker)
        begins = " (most recent call first)" in said and FAULT_THREAD.match(said)
        if own is None:
            if begins and len(self._open) < MOST_SPEAKERS:
                self._open[line.speaker] = [said]
                return True
            return False
        if begins or not said.strip() or said.startswith(BELONGS):
            keep(own, said, MOST_STACK_LINES)
            return True
        self._close(line.speaker)
        return False

    def texts(self) -> dict[Speaker, str]:
        """The dumps, as faulthandler wrote them."""
        for speaker in [*self._open]:
            self._close(speaker)
        return {speaker: "\n".join(lines) for speaker, lines in self.last.items()}

    def _close(self, speaker: Speaker) -> None:
        lines = self._open.pop(speaker)
        if any(FAULT_FRAME.match(line) for line in lines):
            self.last[speaker] = lines
