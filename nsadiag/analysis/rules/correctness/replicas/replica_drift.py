"""Data-parallel replicas that diverged although the job meant to keep them equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    averages_by_hand,
    noted,
    one_optimizer,
    steps_of,
)
from nsadiag.analysis.relations.invariants.tensors import is_constant, models_of, parameters_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import Drift, counts_since_wrap, drift, kept_equal, summed
from nsadiag.analysis.relations.replication import (
    are_most,
    averaged,
    has_parts,
    wrapped_at,
    wrapped_at_other_steps,
)
from nsadiag.analysis.rules.correctness.replicas.drift_causes import (
    DriftCause,
    cause_by_hand,
    cause_in_ddp,
    of_setting,
)
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import differing_setting
from nsadiag.analysis.rules.correctness.replicas.optimizer_steps import skipped_step
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.rank_conditions import frozen_on_one_rank
from nsadiag.source.patterns.single_call import (
    condition_around,
    last_call,
    only_assignment,
    only_keyword,
    thawed,
)

UNKNOWN_TO_DDP = (
    "DDP does not reduce it, because it was frozen when DDP wrapped the model, or was added afterwards"
)
OF_UNKNOWN = "Change the model (new layers, requires_grad) before DDP wraps it, or wrap it again; reduce changes that use no gradient by hand."
IGNORED = "ignored_params"  # of fully_shard
WRAPPED = "The model is wrapped in DDP"
AVERAGED = "Gradients are averaged in every step"
IF_MEANT = "If separate copies are intended, ignore this."


def replica_drift(case: Case) -> Iterator[Draft | Declined]:
    """Only where equal replicas are intended: wrapped in DDP, or gradients averaged by hand in every step."""
    if not ran_together(case.cell):
        return
    if all(r.ddp for r in case.cell.ranks):
        yield from _wrapped(case)
    elif not any(r.ddp for r in case.cell.ranks):
        yield from _by_hand(case)
        yield from _beside_units(case)
    yield from _frozen_apart(case)
    yield Declined(
        "the replicas are equal as intended, by every recorded sum over their parameters"
        if any(rank.replicas for rank in case.cell.ranks)
        else "no sums over parameters were recorded"
    )


def _wrapped(case: Case) -> Iterator[Draft]:
    models = [model for rank in case.cell.ranks for model in rank.ddp]
    # DDP keeps replicas equal within its group; other groups hold another part of the model, or other data.
    if any(m.comm_hook or 0 < len(m.ranks) < case.cell.world_size for m in models):
        return
    if wrapped_at_other_steps(case) and not counts_since_wrap(case.cell):
        return
    known = _held_by_ddp(case.cell)
    if found := drift(case.cell, known) or _by_a_step_less(case, known):
        yield _because(case, WRAPPED, found, cause_in_ddp(case, found, known))
        return
    yield from _by_rates(case, WRAPPED)
    yield from _not_reduced(case)
    yield from _beside_the_wrapper(case, known)


def _by_hand(case: Case) -> Iterator[Draft]:
    names, at = averaged(case)
    if not are_most(case.cell, names):
        # Parameters that change and stay equal on all ranks are averaged in some way.
        kept = kept_equal(case.cell)
        if are_most(case.cell, kept) and not any(r.units for r in case.cell.ranks):
            yield from _left_out(case, kept, None)
        return
    if found := drift(case.cell, names):
        yield _because(case, AVERAGED, found, cause_by_hand(case, found), at)
        return
    yield from _by_rates(case, AVERAGED)
    yield from _left_out(case, names, at)


def _held_by_ddp(cell: CellEvidence) -> frozenset[str]:
    """Compared parameters that DDP's models hold. Parts of a model that are called on their own have other names."""
    shapes = {name: tuple(shape) for row in cell.ranks[0].replicas for name, shape, _, _ in row.parameters}
    held = {(f".{p.full_name}", tuple(p.shape)) for m in cell.ranks[0].ddp for p in m.parameters}
    return frozenset(
        name
        for name, shape in shapes.items()
        if any(
            shape == other and (known.endswith(f".{name}") or f".{name}".endswith(known))
            for known, other in held
        )
    )


def _because(case: Case, meant: str, found: Drift, why: DriftCause, at: Place | None = None) -> Draft:
    """`at`: the line, if the cause has none."""
    since = "before the first step" if found.from_start else f"from step {found.step} on"
    odd = found if why.odd is None else dataclasses.replace(found, odd=why.odd)
    summary = f"{meant}, but the replicas differ {since}: {why.says}."
    return _finding(case, odd, summary, why.place or at, why.fix, more=why.more)


def _by_rates(case: Case, meant: str) -> Iterator[Draft]:
    """A drift after the last comparison, known from different learning rates alone."""
    apart = differing_setting(case)
    if apart and apart.setting == "lr":
        why = of_setting(apart)
        summary = f"{meant}, but the replicas diverge: {why.says}."
        yield silent_error(
            case, summary, why.more, why.place, Where(step=apart.step), why.fix, ranks=apart.ranks
        )


def _by_a_step_less(case: Case, among: frozenset[str]) -> Drift | None:
    """The drift of ranks with different numbers of steps, if a skipped step is the cause."""
    found = drift(case.cell, among, in_step=False)
    return found if found and skipped_step(case, found.step) else None


# What nothing keeps equal, beside what DDP, FSDP or the job itself does.


def _not_reduced(case: Case) -> Iterator[Draft]:
    """Parameters of the model and the optimizer that were added or unfrozen after the wrap, so that DDP does not reduce them."""
    if not has_parts(case) and (found := drift(case.cell, left_out=True)):
        module = found.parameter.rpartition(".")[0].rpartition(".")[2]
        at = thawed(case.cell.code) or only_assignment(case.cell.code, module)
        summary = f"{_apart(found)}: {UNKNOWN_TO_DDP}."
        yield _finding(case, found, summary, at, f"{OF_UNKNOWN} {IF_MEANT}", Strength.LIKELY)


def _beside_the_wrapper(case: Case, wrapped: frozenset[str]) -> Iterator[Draft]:
    """Parameters of the same optimizer outside the model that DDP wraps; those that differ from the start do so on purpose."""
    # Unnamed ones may be anything, but for a number that is learned.
    sizes = summed(case.cell)
    beside = frozenset(n for n in sizes if n and (not n.startswith("parameter ") or sizes[n] == 1)) - wrapped
    found = drift(case.cell, beside) if beside and not has_parts(case) else None
    if found and not found.from_start:
        summary = f"{_apart(found)}: it is in no model that DDP wraps, and nothing reduces its gradient."
        fix = f"Wrap the whole model in DDP, not a part of it, or reduce the rest by hand. {IF_MEANT}"
        loose = found.parameter.startswith("parameter ")
        stepped = next((o.place for rank in case.cell.ranks for _, o in noted(rank, "step")), None)
        yield _finding(
            case, found, summary, (stepped if loose else None) or wrapped_at(case), fix, Strength.WEAK
        )


def _beside_units(case: Case) -> Iterator[Draft]:
    """Parameters outside FSDP's units: every rank trains them whole, and nothing reduces them."""
    # FSDP1's shards look like any tensor; FSDP2's are DTensors, and are not compared.
    if not all(r.units and all(unit.kind == "FSDP2" for unit in r.units) for r in case.cell.ranks):
        return
    found = None if has_parts(case) or averaged(case)[0] else drift(case.cell)
    if found is None or found.from_start:
        return
    says, at = "it is in none of the modules given to fully_shard", last_call(case.cell.code, "fully_shard")
    fix = "Call fully_shard on the whole model too, after its blocks, so that the rest is sharded and reduced with the root."
    if ignored := only_keyword(case.cell.code, IGNORED):
        says, at = f"fully_shard is given {IGNORED}, and does not hold it", ignored
        fix = "Reduce the gradients of what fully_shard ignores (all_reduce, divided by the ranks) before the optimizer's step."
    summary = f"{_apart(found)}: {says}, and nothing reduces its gradient."
    yield _finding(case, found, summary, at, fix, Strength.LIKELY)


def _left_out(case: Case, reduced: frozenset[str], at: Place | None) -> Iterator[Draft]:
    """A parameter that all ranks start with equally and whose gradient is never averaged, while most are."""
    sizes = summed(case.cell)
    whole = sizes.pop("", 0)
    beside = frozenset(sizes) - reduced
    models = models_of(case)
    modules, theirs = (
        {(models.get(name), name.rpartition(".")[0]) for name in names} for names in (beside, reduced)
    )
    # A whole module, a head or an adapter, may differ between ranks by design, a single weight not.
    loose = not modules & theirs and _are_loose(case, beside, reduced)
    if has_parts(case) or 2 * sum(sizes[name] for name in reduced) < whole or not (modules & theirs or loose):
        return
    found = drift(case.cell, beside)
    if found and not found.from_start:
        at = (condition_around(case.cell.code, at) if loose else None) or at
        summary = f"{_apart(found)}: gradients are averaged in every step, and its own is not."
        fix = f"Reduce every gradient before the optimizer uses it. {IF_MEANT}"
        yield _finding(case, found, summary, at, fix, Strength.WEAK)


def _are_loose(case: Case, names: frozenset[str], reduced: frozenset[str]) -> bool:
    """Whether they lie directly in modules of which all parts are reduced, as learned scales and positions do beside layers.

    One alone may be each rank's own prompt.
    """
    found = [copies for copies in parameters_of(case) if copies.name in names]
    models = models_of(case)
    outer = {(models.get(copies.name), copies.name.rpartition(".")[0]) for copies in found}
    around = all(
        any(models.get(name) == model and (not m or name.startswith(f"{m}.")) for name in reduced)
        for model, m in outer
    )
    drawn = any(copies.held and not is_constant(copies.first) for copies in found)
    several = len({copies.first.shape for copies in found}) > 1
    return around and drawn and several and len(found) == len(names)


def _apart(found: Drift) -> str:
    return f"{found.parameter} is equal on all ranks at first, and differs from step {found.step} on"


def _frozen_apart(case: Case) -> Iterator[Draft]:
    """Averaged gradients of parameters that some rank has frozen, also for a few steps."""
    steps = steps_of(case)
    trained = {step.number: {rank: ops[0] for rank, ops in step.of("step").items()} for step in steps}
    of = {o.of for each in trained.values() for o in each.values()}
    if len(steps) < LEAST or len(of) > 1 or not one_optimizer(steps) or not averages_by_hand(case):
        return
    held = {n: {rank: o.held for rank, o in each.items()} for n, each in trained.items()}
    apart = {n: each for n, each in held.items() if len(set(each.values())) > 1}
    if not apart:
        return
    step, each = next(iter(apart.items()))
    shown = by_rank({rank: f"{count} of {max(of)}" for rank, count in each.items()})
    since = (
        "" if len(apart) == len(steps) else f" in step {step}" if len(apart) == 1 else f" from step {step} on"
    )
    yield silent_error(
        case,
        f"Gradients are averaged over the ranks, but{since} the ranks do not train the same parameters ({shown}): a rank that froze one contributes nothing to its average.",
        f"parameters of the optimizer that require a gradient, at step {step}: {shown}",
        frozen_on_one_rank(case.cell.code) or thawed(case.cell.code),
        Where(step=step),
        "Freeze and unfreeze parameters on all ranks alike.",
        ranks=(rank for rank, count in each.items() if count == min(each.values())),
    )


def _finding(
    case: Case,
    found: Drift,
    summary: str,
    at: Place | str | None,
    fix: str,
    strength: Strength = Strength.STRONG,
    more: Claims | None = None,
) -> Draft:
    gap = f"the largest difference is {found.gap:.1e} of the parameter's magnitude; synchronized replicas are equal to the last bit"
    claims = {**dict.fromkeys((found.says, gap), found.source), **(more or {})}
    where = Where(parameter=found.parameter, step=found.step)
    return silent_error(case, summary, claims, at, where, fix, strength=strength, ranks=found.odd)


RULE = Rule(
    family="correctness",
    detected="Sums of the parameters differ between replicas that were meant to be equal. Either DDP wraps them; also what was put into the model or unfrozen after the wrap, and what the same optimizer trains besides the wrapped model. The guilty rank is one that skipped an optimizer step (by a branch, or by a gradient scaler that saw only its own gradients), did not load its state, got other settings of the optimizer (a learning rate that a scheduler set, also after the last snapshot of the sums), or alone has parameters that something besides the optimizer writes. Or gradients are averaged by hand in every step before the optimizer uses them, whole, one by one or in buckets, or most of them are kept equal in another way; models that are averaged at the end or now and then differ on purpose",
    fix="Reduce every gradient before the optimizer uses it, and change parameters on all ranks alike.",
    check=replica_drift,
    keeps="copies",
    needs=("black_boxes",),
    explained_by=(
        "control_mismatch",
        "broken_equalities",
        "summed_after_each_backward",
        "unexchanged_gradients",
    ),
)
