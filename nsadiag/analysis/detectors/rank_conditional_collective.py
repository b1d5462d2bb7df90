"""A branch on the rank, or a helper behind one, enters or skips a collective that all ranks of the group belong to."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding


def rank_conditional_collective(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(
        cell,
        tables,
        "rank_conditional_collective",
        fix="Take the call out of the branch, so that every rank of the group makes it, and keep only what is rank-local (printing, writing) inside.",
        rejected={
            "data_divergent_control_flow": "the condition depends on the rank, not on its data",
            "straggler_rank": "no rank will make up for a call that the others made",
            "collective_order_mismatch": "the ranks did not swap their calls: one side of the branch never makes this one",
        },
    )
