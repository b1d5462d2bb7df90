"""Ranks ran different modules in one step (units of FSDP, experts, dropped layers): what one gathers, the other never will."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.breaks import breaks
from nsadiag.analysis.divergence import finding_of
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.units_apart import units_apart
from nsadiag.analysis.waiting import is_still
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

FIX = "Run the same modules on every rank: draw what is dropped from a generator with the same seed on all ranks, and run unused experts with empty or masked input."
REJECTED = {
    "collective_args_mismatch": "the sizes differ because the modules do",
    "collective_order_mismatch": "the order differs because the modules do",
    "data_divergent_control_flow": "the branch is inside the model and chooses modules",
}


def divergent_module_execution(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from finding_of(cell, tables, "divergent_module_execution", fix=FIX, rejected=REJECTED)


def divergent_units(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    """By what FSDP gathered: where the sizes fit, ranks compute with a mixture of two modules, whether they hang later or not."""
    found = units_apart(cell, tables)
    if found is None:
        return
    one = found.one
    ran = " and ".join(f"{unit} on rank {cell.names(ranks)}" for unit, ranks in found.ranks_of())
    stuck = is_still(cell) or cell.stopped == "hang"
    broke = any(b.kind != "exited" for b in breaks(cell))
    yield Finding(
        detector="divergent_units",
        cls="divergent_module_execution",
        outcome="hung" if stuck else "crashed" if broke else "wrong",
        confidence=0.9,
        summary=f"The ranks ran different units of FSDP in step {one.step}: collective {one.number} of {one.group} gathers {ran}, and mixes what it gathers.",
        guilty_ranks=found.odd,
        blocked_ranks=tuple(r for r in sorted(found.by) if r not in found.odd),
        where=Where(module=one.unit, step=one.step).at(found.place),
        evidence=tuple(
            Evidence(
                claim=f"rank {cell.names(ranks)} gathered {unit} in collective {one.number} of {one.group}",
                source=f"{cell.rank(ranks[0]).source}/blackbox.bin",
            )
            for unit, ranks in found.ranks_of()
        ),
        rejected=tuple(Rejected(cls=cls, because=why) for cls, why in REJECTED.items()),
        fix=FIX,
    )
