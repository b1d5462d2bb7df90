"""Ranks ran different numbers of batches or steps: one is through with its loop while others still train."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding


def uneven_inputs(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(
        cell,
        tables,
        "uneven_inputs",
        fix="Give all ranks the same number of batches (DistributedSampler with drop_last, or agree on the shortest by all_reduce(MIN)), or train under Join.",
        rejected={
            "collective_order_mismatch": "the ranks make the same calls in the same order; one of them makes fewer",
            "data_divergent_control_flow": "the loop ended with its data, not by a branch",
            "missing_rank": "the loop and the ranks' counts show why it never comes",
        },
    )
