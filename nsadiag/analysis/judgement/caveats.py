"""Caveats of a finding from other tools' files: numbers that are no ranks, and logs that end early."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Finding, Strength

MOST_NAMED = 4


def added(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding, with pids where nothing told ranks; weaker where who is silent may have written behind a cut."""
    told = cell.collected
    if told is None:
        return cause
    named = [rank for rank in cause.guilty_ranks if rank in told.numbered][:MOST_NAMED]
    if named:
        pids = ", ".join(f"{rank} is pid {told.numbered[rank]}" for rank in named)
        cause = dataclasses.replace(cause, summary=f"{cause.summary} (These numbers are no ranks: {pids}.)")
    if told.cut and cell.absent & set(cause.guilty_ranks):
        silent = f"{told.cut[0]} ends early, and what a silent rank wrote may lie behind that"
        return dataclasses.replace(
            cause, summary=f"{cause.summary} ({silent}.)", strength=cause.strength.at_most(Strength.GUESS)
        )
    return cause
