"""Ranks do not reduce their gradients in the same backward: no_sync or the boundaries of accumulation differ."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding


def grad_sync_mismatch(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(
        cell,
        tables,
        "grad_sync_mismatch",
        fix="Compute the boundary of accumulation from what is equal on all ranks: the same number of micro-batches and the same counter, and enter no_sync on all of them or on none.",
        rejected={
            "uneven_inputs": "the ranks ran the same iterations up to there, and reduced in different ones",
            "collective_order_mismatch": "the calls are not swapped: one side has left them out",
            "missing_rank": "what each rank's backward was to do shows why it never comes",
        },
    )
