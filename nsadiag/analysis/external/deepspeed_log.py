"""DeepSpeed's communication summary (`log_summary(show_straggler=True)`): how long each rank waited for the slowest one."""

from __future__ import annotations

import re
from dataclasses import dataclass

TITLE = "Breakdown with straggler effect"
# Below the name of an operation: message size, count, then in ms the least of all ranks, what this one took more, and both means.
ROW = re.compile(
    r"^ {16,}(?P<size>[\d.]+ ?[KMGTPE]?B) +(?P<count>\d+) +(?P<least>[\d.]+) +(?P<more>[\d.]+) +[\d.]+ +[\d.]+\s*$"
)


@dataclass(frozen=True, kw_only=True)
class Waits:
    """One rank's sums, of the last summary in its log."""

    rank: int
    least_ms: float  # that its collectives took on the fastest rank
    more_ms: float  # that they took here: it was early, and waited
    source: str


def waits_of(text: str, rank: int, source: str) -> Waits | None:
    """The last summary of a log; None where it has none."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines, 1) if line.strip() == TITLE]
    rows = [row for line in lines[begins[-1] :] if (row := ROW.match(line))] if begins else []
    if not rows:
        return None
    return Waits(
        rank=rank,
        least_ms=sum(float(row["least"]) for row in rows),
        more_ms=sum(float(row["more"]) for row in rows),
        source=f"{source}#line {begins[-1]}",
    )
