"""Buffers of asynchronous collectives that the very next lines use, while nobody has waited for the collective yet.

Whether it was over by then is luck: a wait that comes later, elsewhere, says only that the handle was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_mismatch import shapes
from nsadiag.analysis.relations.manual_averaging import FEW
from nsadiag.evidence.records import Place
from nsadiag.source.patterns.buffers import FILL, used_after


@dataclass(frozen=True, kw_only=True)
class Early:
    """A collective's line, and the line that uses its buffer right after."""

    op: str
    started: Place
    used: Place
    buffer: str  # as it is written
    ranks: tuple[int, ...]
    times: int  # that it was started, on the first of them


def read_early(case: Case) -> Early | None:
    """The first such line that the job has run time and again, with more than a few numbers."""
    calls = case.asked[case.asked.op.isin(FILL)]
    for text, rows in calls.groupby("place", sort=False):
        started = locations.of_text(str(text))
        source = case.cell.code.file(started.file) if started else None
        large = any(elements > FEW for tensors in rows.tensors.unique() for _, elements in shapes(tensors))
        found = next(used_after(source, started.line), None) if started and source and large else None
        if started and found:
            ranks = tuple(sorted(int(rank) for rank in rows["rank"].unique()))
            return Early(
                op=str(rows.op.iloc[0]), started=started, used=locations.place(started.file, found[0], started.function),
                buffer=found[1], ranks=ranks, times=int((rows["rank"] == ranks[0]).sum()),
            )  # fmt: skip
    return None
