"""Buffers of asynchronous collectives that the following lines use before any wait.

Whether the collective is complete by then is chance; a later wait elsewhere only shows that the handle was kept.
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
class EarlyUse:
    """The line of a collective, and the following line that uses its buffer."""

    op: str
    started: Place
    used: Place
    buffer: str  # as written in the source
    ranks: tuple[int, ...]
    times: int  # number of starts on the first rank


def early_use(case: Case) -> EarlyUse | None:
    """The first such line that the job has run repeatedly on a buffer of more than a few elements."""
    calls = case.asked[case.asked.op.isin(FILL)]
    for text, rows in calls.groupby("place", sort=False):
        started = locations.of_text(str(text))
        source = case.cell.code.file(started.file) if started else None
        large = any(elements > FEW for tensors in rows.tensors.unique() for _, elements in shapes(tensors))
        found = next(used_after(source, started.line), None) if started and source and large else None
        if started and found:
            times = rows["rank"].value_counts(sort=False).sort_index()
            return EarlyUse(
                op=str(rows.op.iloc[0]),
                started=started,
                used=locations.place(started.file, found[0], started.function),
                buffer=found[1],
                ranks=tuple(int(rank) for rank in times.index),
                times=int(times.iloc[0]),
            )
    return None
