"""DeepSpeed's communication summary (`log_summary(show_straggler=True)`): how long each rank waited for the slowest one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.lines import NOBODY, LogLine, Speaker

TITLE = "Breakdown with straggler effect"
# Below the name of an operation: message size, count, then in ms the least of all ranks, what this one took more, and both means.
ROW = re.compile(
    r"^ {16,}(?P<size>[\d.]+ ?[KMGTPE]?B) +(?P<count>\d+) +(?P<least>[\d.]+) +(?P<more>[\d.]+) +[\d.]+ +[\d.]+\s*$"
)


@dataclass(frozen=True, kw_only=True)
class Waits:
    """One summary: of all collectives what they took on the fastest rank, and here."""

    rank: int | None
    least_ms: float
    more_ms: float
    line: int
    speaker: Speaker = NOBODY


class WaitSummary:
    """The last summary of a log."""

    def __init__(self) -> None:
        self.last: Waits | None = None
        self._line = 0
        self._speaker = NOBODY
        self._least_ms = self._more_ms = 0.0

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of a summary."""
        if line.said.strip() == TITLE:
            self._line, self._speaker, self.last = line.number, line.speaker, None
            self._least_ms = self._more_ms = 0.0
            return True
        if not self._line or not (row := ROW.match(line.said)):
            return False
        self._least_ms += float(row["least"])
        self._more_ms += float(row["more"])
        self.last = Waits(
            rank=self._speaker.rank,
            least_ms=self._least_ms,
            more_ms=self._more_ms,
            line=self._line,
            speaker=self._speaker,
        )
        return True
