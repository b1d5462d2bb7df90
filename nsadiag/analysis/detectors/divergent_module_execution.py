"""Ranks ran different modules in one step (units of FSDP, experts, dropped layers): what one gathers, the other never will."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding


def divergent_module_execution(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(
        cell,
        tables,
        "divergent_module_execution",
        fix="Run the same modules on every rank: draw what is dropped from a generator with the same seed on all ranks, and run unused experts with empty or masked input.",
        rejected={
            "collective_args_mismatch": "the sizes differ because the modules do",
            "collective_order_mismatch": "the order differs because the modules do",
            "data_divergent_control_flow": "the branch is inside the model and chooses modules",
        },
    )
