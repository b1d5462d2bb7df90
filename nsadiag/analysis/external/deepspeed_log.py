"""DeepSpeed's communication summary (`log_summary(show_straggler=True)`): how long each rank waited for the slowest one."""

from __future__ import annotations

import re

from nsadiag.analysis.records import SummarisedWaits

TITLE = "Breakdown with straggler effect"
# Below the name of an operation: message size, count, then in ms the least of all ranks, what this one took more, and both means.
ROW = re.compile(
    r"^ {16,}(?P<size>[\d.]+ ?[KMGTPE]?B) +(?P<count>\d+) +(?P<least>[\d.]+) +(?P<more>[\d.]+) +[\d.]+ +[\d.]+\s*$"
)


def waits_of(text: str, rank: int, source: str) -> SummarisedWaits | None:
    """The last summary of a log; None where it has none."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines, 1) if line.strip() == TITLE]
    rows = [row for line in lines[begins[-1] :] if (row := ROW.match(line))] if begins else []
    if not rows:
        return None
    least_ms, more_ms = (sum(float(row[name]) for row in rows) for name in ("least", "more"))
    return SummarisedWaits(
        rank=rank,
        least_ms=least_ms,
        more_ms=more_ms,
        source=f"{source}#line {begins[-1]}",
    )
