"""DeepSpeed's communication summary (`log_summary(show_straggler=True)`): how long each rank waited for the slowest one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.lines import LogLine

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


class WaitSummary:
    """The last summary of a log."""

    def __init__(self) -> None:
        self.last: Waits | None = None
        self._begins: tuple[int, int | None] = 0, None
        self._sums = 0.0, 0.0

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        if line.said.strip() == TITLE:
            self._begins, self._sums, self.last = (line.number, line.rank), (0.0, 0.0), None
        elif self._begins[0] and (row := ROW.match(line.said)):
            least, more = self._sums
            self._sums = least + float(row["least"]), more + float(row["more"])
            self.last = Waits(
                rank=self._begins[1], least_ms=self._sums[0], more_ms=self._sums[1], line=self._begins[0]
            )
