"""Ranks whose paths through the code diverged: five classes, by the condition on which the sides depend differently."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import DEPENDS, Candidate, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.explanation import Explanation, explain, is_stuck, obstacle
from nsadiag.analysis.facts import locations
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.drafts import at_line, claims_of, named
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Need, Rule
from nsadiag.evidence.phrases import call_name, count, these
from nsadiag.evidence.records import Where


def data_divergent_control_flow(case: Case) -> Iterator[Draft | Declined]:
    return _of_class(case, "data_divergent_control_flow")


def divergent_module_execution(case: Case) -> Iterator[Draft | Declined]:
    return _of_class(case, "divergent_module_execution")


def grad_sync_mismatch(case: Case) -> Iterator[Draft | Declined]:
    return _of_class(case, "grad_sync_mismatch")


def rank_conditional_collective(case: Case) -> Iterator[Draft | Declined]:
    return _of_class(case, "rank_conditional_collective")


def uneven_inputs(case: Case) -> Iterator[Draft | Declined]:
    return _of_class(case, "uneven_inputs")


def order_in_a_loop(case: Case) -> Iterator[Draft | Declined]:
    """A loop that iterates in another order on some ranks, by the source and by earlier steps."""
    return _of_class(case, "collective_order_mismatch")


def _of_class(case: Case, cls: str) -> Iterator[Draft | Declined]:
    """The best explanation of the divergence, if it is of this class; otherwise what it is instead."""
    found = case.once(explain)
    if found is None:
        yield from _unexplained(case)
    elif found.best.cls == cls:
        yield _draft(case.cell, found)
    else:
        yield _another(case.cell, found.best)


def _draft(cell: CellEvidence, found: Explanation) -> Draft:
    best, call = found.best, found.collective
    pending = f" {call_name(call.op, call.seq, call.group)} never completes." if call else ""
    return Draft(
        strength=best.strength,
        summary=f"{named(cell, best.guilty).capitalize()} {best.because}.{pending}",
        guilty_ranks=best.guilty,
        blocked_ranks=best.blocked,
        at=best.where,
        where=Where(collective=call, module=best.module),
        peers_at=found.peers_at,
        evidence=claims_of(found.evidence),
        fix=best.fix,
    )


def _another(cell: CellEvidence, found: Candidate) -> Declined:
    """The condition between the ranks, if there is one: its provenance determines the class."""
    guard = found.condition
    if guard is None:
        return found.declined(cell)
    at = locations.short(locations.place(guard.file, guard.line, guard.function or None))
    source = sources.cited(cell, guard.file, guard.line)
    if found.cls == "uneven_inputs" and guard.is_loop:
        return Declined(f"the loop `{shown(guard)}` ({at}) ended by itself on {these(found.guilty)}", source)
    depends = DEPENDS[guard.provenance]
    return Declined(f"the ranks diverged at `{shown(guard)}` ({at}), which depends on {depends}", source)


def _unexplained(case: Case) -> Iterator[Declined]:
    if not is_stuck(case):
        yield from other_break(case.cell)
    elif keeps := case.once(obstacle):
        yield keeps
    elif len(members := case.once(Context).members()) < 2:
        yield Declined(f"{count(len(members), 'rank')} can be compared with the others")
    else:
        states = sorted(case.thread_states.items())[:4]
        where = "; ".join(f"rank {rank}{at_line(state.place)}" for rank, state in states if state.place)
        yield Declined(f"no condition in the source explains where the ranks are{where and f' ({where})'}")


EVIDENCE: tuple[Need, ...] = ("black_boxes", "stacks", "sources")

DATA = Rule(
    means={"data_divergent_control_flow": "A branch on a rank's own data enters or skips a collective."},
    family="divergence",
    detected="Within one iteration a rank did something else than its peers, and the condition in between depends neither on the rank nor on counters that all ranks share. Or the rank left the loop, stopped a framework's trainer, or skipped a step by such a condition or an `except`. Or its loss was a constant, and DDP reduced nothing in that backward. `where` is the condition, or the call that only it leads to. Of two equal sides, the one that did something for the first time is guilty.",
    fix="Agree on the flag first: all_reduce it (MAX or MIN), then branch on the result.",
    check=data_divergent_control_flow,
    needs=EVIDENCE,
    explained_by=("grad_sync_mismatch",),
    confused_with=("rank_conditional_collective", "uneven_inputs", "straggler_rank"),
)

MODULES = Rule(
    means={"divergent_module_execution": "Ranks run different modules in one step."},
    family="structure",
    detected="Ranks diverged within one iteration at a condition inside a module's `forward`. If each rank draws at random on its own, both of two equal sides are guilty.",
    fix="Run the same modules on every rank: draw the layers to drop from a generator with the same seed on all ranks, and run unused experts with empty or masked input.",
    check=divergent_module_execution,
    needs=EVIDENCE,
    explained_by=("model_structure_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "collective_args_mismatch"),
)

GRADIENTS = Rule(
    means={
        "grad_sync_mismatch": "Ranks synchronise gradients at different steps: no_sync or accumulation differ."
    },
    family="divergence",
    detected="The same backward reduces gradients on some ranks and only accumulates them on others, by `no_sync` (DDP, FSDP1), `set_requires_gradient_sync` (FSDP2), or an accumulation boundary that ranks reached in different iterations. `where` is the condition on which they differ. Of two equal sides, the one that does not reduce is guilty.",
    fix="Compute accumulation boundaries from values that all ranks share: the same number of micro-batches and the same counter, and enter no_sync on all of them or on none.",
    check=grad_sync_mismatch,
    needs=EVIDENCE,
    confused_with=("uneven_inputs", "collective_order_mismatch", "missing_rank"),
)

RANK = Rule(
    means={"rank_conditional_collective": "A branch on the rank enters or skips a collective."},
    family="divergence",
    detected="Ranks wait in a collective that other members of the group have passed or skipped, and the condition in between depends on the rank: directly, or through names, attributes, helpers, decorators, or lists filled under such a condition. The smaller side is guilty; of two equal sides, the rank that the condition names. A condition whose two sides make the same call does not count.",
    fix="Take the call out of the branch, so that every rank of the group makes it, and keep only what is rank-local (printing, writing) inside.",
    check=rank_conditional_collective,
    needs=EVIDENCE,
    explained_by=("grad_sync_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "straggler_rank"),
)

INPUTS = Rule(
    means={"uneven_inputs": "Ranks ran different numbers of batches or steps."},
    family="divergence",
    detected="A rank has left a loop after fewer iterations than its peers, and the loop ended by itself: it iterates over data, asked its loader last, or stopped where the data did. Or a framework runs the loop, and the rank's loader was exhausted when the others' returned another batch. The smaller side is guilty; of two equal sides, the one with less data. `where` is the line at which the rank went on if that is in the loop's function, otherwise the loop.",
    fix="Give all ranks the same number of batches (DistributedSampler with drop_last, or agree on the shortest by all_reduce(MIN)), or train under Join.",
    check=uneven_inputs,
    needs=EVIDENCE,
    explained_by=("grad_sync_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "missing_rank"),
)
