"""A branch on this rank's own data or state (a NaN, an early stop, an empty batch, a flag) took it away from the others."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding


def data_divergent_control_flow(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(
        cell,
        tables,
        "data_divergent_control_flow",
        fix="Let all ranks decide together: all_reduce the flag (MAX or MIN) before the branch, and branch on the result.",
        rejected={
            "rank_conditional_collective": "the condition does not depend on the rank's number",
            "uneven_inputs": "the ranks did not run out of data: one of them left the common path",
            "straggler_rank": "no rank will make up for what it skipped",
        },
    )
