"""The table of messages: a row each; and the facts that a line states."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.ingest.messages.lines import LogLine
from nsadiag.analysis.ingest.messages.rows import (
    clusters,
    devices,
    gloo_and_store,
    launchers,
    nccl,
    surroundings,
    watchdog,
    wrappers,
)
from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import Fact

# By whoever writes them. Of the rows that make the same kind of fact, the first that fits a line counts.
FAMILIES: dict[str, tuple[MessageRow, ...]] = {
    "torch's watchdog": watchdog.ROWS,
    "NCCL": nccl.ROWS,
    "GPUs": devices.ROWS,
    "Gloo and torch's store": gloo_and_store.ROWS,
    "DDP, FSDP, DeepSpeed": wrappers.ROWS,
    "Launchers and Ray": launchers.ROWS,
    "Slurm, Kubernetes, the kernel": clusters.ROWS,
    "Sizes, versions, settings, other tools": surroundings.ROWS,
}
ROWS = tuple(row for rows in FAMILIES.values() for row in rows)


# Most lines have none of the marks; the whole line has whatever its message has.
MARKS = tuple((row.mark, place) for place, row in enumerate(ROWS))


def facts_of(line: LogLine) -> Iterator[Fact]:
    """The facts that a line states, one of a kind."""
    text = line.text
    marked = [place for mark, place in MARKS if mark in text]
    seen: set[tuple[type[Fact], str]] = set()
    for row in (ROWS[place] for place in marked):
        kind = row.makes, row.fixed.get("of", "")
        if kind not in seen and (facts := [*row.read(line)]):
            seen.add(kind)
            yield from facts
