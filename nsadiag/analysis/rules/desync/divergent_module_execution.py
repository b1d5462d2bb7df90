"""Ranks that ran different modules in one step (FSDP units, experts, dropped layers) and so gather different parameters."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.desync.fsdp_units import differing_units
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where

FIX = "Run the same modules on every rank: draw the layers to drop from a generator with the same seed on all ranks, and run unused experts with empty or masked input."


def divergent_module_execution(case: Case) -> Iterator[Draft | Declined]:
    return by_divergence(case, "divergent_module_execution")


def divergent_units(case: Case) -> Iterator[Draft | Declined]:
    """By the units that FSDP gathered: if the sizes match, ranks compute with a mixture of two modules and need not hang."""
    found = differing_units(case)
    if found is None:
        held = sum(bool(rank.units) for rank in case.cell.ranks)
        yield Declined(
            f"no two of {held} ranks with FSDP gathered different units in one collective"
            if held
            else f"none of {len(case.cell.ranks)} ranks has FSDP units"
        )
        return
    one = found.one
    ran = " and ".join(f"{unit} on {named(case.cell, ranks)}" for unit, ranks in found.ranks_of())
    stuck = is_still(case.cell) or case.cell.stopped == "hang"
    broke = any(b.kind != "exited" for b in breaks(case.cell))
    yield Draft(
        outcome="hung" if stuck else "crashed" if broke else "wrong",
        strength=Strength.STRONG,
        summary=f"The ranks ran different FSDP units in step {one.step}: collective {one.number} of {one.group} gathers {ran}, and mixes them.",
        guilty_ranks=found.odd,
        blocked_ranks=tuple(r for r in sorted(found.by) if r not in found.odd),
        where=Where(module=one.unit, step=one.step).at(found.place),
        evidence={
            f"{named(case.cell, ranks)} gathered {unit} in collective {one.number} of {one.group}": f"{case.cell.rank(ranks[0]).source}/blackbox.bin"
            for unit, ranks in found.ranks_of()
        },
    )


RULE = Rule(
    name="divergent_module_execution",
    means={"divergent_module_execution": "Ranks run different modules in one step."},
    family="structure",
    detected="Ranks gathered different FSDP units in the same collective (also in a job that completes: where the sizes match, they are mixed silently), or diverged within one iteration at a condition inside a module's `forward`. Both of two equal sides are guilty if each rank draws at random on its own",
    fix=FIX,
    check=divergent_module_execution,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("model_structure_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "collective_args_mismatch"),
)

OF_UNITS = Rule(
    name="divergent_units",
    concludes=("divergent_module_execution",),
    family="divergence",
    detected="With FSDP: units gathered in the same collective belong to different modules, whether or not the ranks hang later",
    fix=FIX,
    check=divergent_units,
    needs=("black_boxes",),
    explained_by=("data_divergent_control_flow", "rank_conditional_collective", "uneven_inputs"),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "collective_args_mismatch"),
)
