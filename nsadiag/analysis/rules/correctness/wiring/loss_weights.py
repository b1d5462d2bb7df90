"""Losses that weigh wrongly: another factor on some ranks, or a mean over each rank's own tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.losses import averages_gradients, backwards_of, weights_of
from nsadiag.analysis.relations.invariants.operations import reduces_gradients, steps_of
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import recorder_of
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.single_call import cross_entropy_near, scaled_loss

LEAST = 6  # recorded steps
FEW = 3  # steps of scalers
# The least ratio between the weights of a token that is no coincidence where it holds in every step.
UNEVEN = 1.5
UNLIKE = 1.1  # of numbers of tokens by which each rank divides, in half of the steps: less makes no difference worth a word
EXACT = 1e-4
NEARLY = 1e-2


def other_scale(case: Case) -> Iterator[Draft]:
    """Gradient scalers that go on with different scales, where gradients are reduced before they are unscaled."""
    begun = case.begun(Kind.SCALER)
    each = {rank.rank: begun[begun["rank"] == rank.rank] for rank in case.cell.ranks}
    # Of a scale that only a GPU knows, 0 is recorded.
    if any(len(found) == 0 or not found.b.all() for found in each.values()) or not averages_gradients(case):
        return
    if any(_unscales_first(ops) for step in steps_of(case) for ops in step.ranks.values()):
        return
    scales = [
        dict(zip(each, found, strict=True))
        for found in zip(*(rows.b for rows in each.values()), strict=False)
    ]
    # The first of the steps from which on they differ to the end.
    equal = [n for n, found in enumerate(scales) if len(set(found.values())) == 1]
    apart = max(equal, default=-1) + 1
    if len(scales) - apart < FEW:
        return
    row = next(iter(each.values())).iloc[max(apart - 1, 0)]
    odd, shown = outlier_ranks(scales[apart], case.cell.weight), by_rank(scales[apart])
    yield silent_error(
        case,
        f"From step {int(row.step) + (apart > 0)} on the ranks multiply their losses by different scales ({shown}), and average the gradients before they divide by them: each rank has another weight.",
        {
            f"scale at each of the last {len(scales) - apart} steps of the scalers, first: {shown}": recorder_of(
                case.cell, odd[0]
            )
        },
        str(row.site),
        Where(step=int(row.step), phase="backward"),
        strength=Strength.LIKELY,
        ranks=odd,
    )


def _unscales_first(operations: tuple[Operation, ...]) -> bool:
    """Whether gradients are unscaled before the user's code reduces them."""
    unscaled = False
    for operation in operations:
        unscaled = operation.kind == "unscale" or (unscaled and operation.kind != "backward")
        if unscaled and reduces_gradients(operation):
            return True
    return False


def other_factor(case: Case) -> Iterator[Draft]:
    """The loss of some ranks is multiplied by another number."""
    if backward := _unequal(case, differ=True):
        yield _other_factor(case, backward)


def own_token_mean(case: Case) -> Iterator[Draft]:
    """Each rank divides by its own number of tokens."""
    if backward := _unequal(case, differ=False):
        yield _own_mean(case, backward)
    elif totals := _totals_of(case):
        yield _own_total(case, totals)


def averaged_twice(case: Case) -> Iterator[Draft]:
    """Sums are divided by the number of tokens of all ranks, and then DDP averages them."""
    found = {each.step: each.divided_sums() for each in backwards_of(case)}
    hooks = any(model.comm_hook for rank in case.cell.ranks for model in rank.ddp)
    if len(found) < LEAST or not is_replicated(case.cell) or hooks or not all(found.values()):
        return
    totals = {step: sum(counted for _, counted in each.values()) for step, each in found.items()}
    if not all(by == {totals[step]} for step, each in found.items() for by, _ in each.values()):
        return
    step, total = next(iter(totals.items()))
    world = case.cell.world_size
    yield silent_error(
        case,
        f"Losses are divided by the number of tokens of all {world} ranks, and DDP divides their gradients by {world} once more: they are {world} times too small.",
        f"at each of {len(totals)} steps every rank's sum is divided by the targets that all ranks count together; at step {step} by {total:g}",
        next(iter(backwards_of(case)[0].ranks.values()))[0].place,
        Where(step=step, phase="backward"),
        strength=Strength.LIKELY,
    )


def _totals_of(case: Case) -> dict[int, dict[int, float]]:
    """By step and rank, the tokens of all its micro-batches, where each rank divides by just that number; none where they are as many on all."""
    found = {each.step: each.divided_sums() for each in backwards_of(case)}
    several = all(len(ops) > 1 for each in backwards_of(case) for ops in each.ranks.values())
    own = all(by == {counted} for each in found.values() for by, counted in each.values())
    if len(found) < LEAST or not averages_gradients(case) or not (several and own and all(found.values())):
        return {}
    totals = {step: {rank: counted for rank, (_, counted) in each.items()} for step, each in found.items()}
    unlike = sum(max(each.values()) > UNLIKE * min(each.values()) for each in totals.values())
    return totals if 2 * unlike >= len(totals) else {}


def _own_total(case: Case, totals: dict[int, dict[int, float]]) -> Draft:
    step, counted = next(iter(totals.items()))
    return silent_error(
        case,
        "Each rank divides the losses of its micro-batches by the number of its own tokens, and then the ranks are averaged with equal weight, although their numbers differ: a token counts more on one rank than on another.",
        f"at each of {len(totals)} steps a rank's sums are divided by the targets that it counts itself; at step {step}: {by_rank(counted, 'g')}",
        next(iter(backwards_of(case)[0].ranks.values()))[0].place,
        Where(step=step, phase="backward"),
        strength=Strength.LIKELY,
    )


def _unequal(case: Case, *, differ: bool) -> Operation | None:
    """Rows of one rank that weigh more than those of another, always to the same side, where all ranks weigh alike in the average."""
    weights = weights_of(case)
    if len(weights) < LEAST or not averages_gradients(case):
        return None
    each = [found.each for found in weights.values()]
    uneven = all(max(found.values()) >= UNEVEN * min(found.values()) for found in each)
    leading = {max(found, key=found.__getitem__) for found in each}
    if not all(found.comparable for found in weights.values()) or not uneven or len(leading) > 1:
        return None
    backward = next(iter(backwards_of(case)[0].ranks.values()))[0]
    differing = len(set(weights[min(weights)].factors.values())) > 1
    shares = differing and all(_are_shares(found.factors) for found in weights.values())
    return backward if differing == differ and not shares else None


def _are_shares(factors: dict[int, float]) -> bool:
    """Whether each rank has a factor of its own and the average is one, as where ranks stand for domains that weigh unlike."""
    average = sum(factors.values()) / len(factors)
    return math.isclose(average, 1, rel_tol=NEARLY) and not any(f == 1 for f in factors.values())


def _other_factor(case: Case, backward: Operation) -> Draft:
    step, found = next(iter(weights_of(case).items()))
    odd = outlier_ranks(found.factors, case.cell.weight)
    odd = tuple(rank for rank in odd if found.factors[rank] != 1) or odd
    shown = by_rank(found.factors, "g")
    others = (
        f"The loss of rank {case.cell.names(odd)} is multiplied by another factor than that of its peers"
        if len(odd) < case.cell.world_size
        else "Each rank's loss is multiplied by a factor of its own"
    )
    return silent_error(
        case,
        f"{others} ({shown}), over batches of the same size: it has another weight in the average of the gradients.",
        f"factor of the loss that backward began with, at step {step}: {shown}",
        scaled_loss(case.cell.code) or backward.place,
        Where(step=step, phase="backward"),
        strength=Strength.LIKELY,
        ranks=odd,
    )


def _own_mean(case: Case, backward: Operation) -> Draft:
    counted = {
        step: by_rank({rank: term.counted for rank, term in found.terms.items()}, "g")
        for step, found in weights_of(case).items()
    }
    shown = "; ".join(f"step {step}: {text}" for step, text in list(counted.items())[:3])
    return silent_error(
        case,
        "Each rank's loss is a mean over its own tokens, and then the ranks are averaged with equal weight, although their numbers of tokens differ in every step: a token counts more on one rank than on another.",
        f"targets that are not ignored: {shown}",
        cross_entropy_near(case.cell.code, locations.of_text(backward.place)) or backward.place,
        Where(step=min(counted), phase="backward"),
        strength=Strength.LIKELY,
    )


def _kept(case: Case) -> Iterator[Declined]:
    steps = len(backwards_of(case))
    yield Declined(
        f"the ranks' losses have the same weight, in {count(steps, 'step')}"
        if steps
        else "no loss was recorded"
    )


RULES = each_of(
    "correctness",
    {
        other_scale: (
            "Gradient scalers of ranks that average scaled gradients go on with different scales",
            "Let all ranks skip a step together: reduce what each scaler found (MAX), or use one that knows of shards.",
        ),
        other_factor: (
            "(on a GPU: `--probes light,invariants`) The loss has another factor on some ranks",
            "Multiply the loss by the same factor on all ranks.",
        ),
        own_token_mean: (
            "(on a GPU: `--probes light,invariants`) The loss is a mean over each rank's own tokens, of which one rank always has more, or which it counts over several micro-batches",
            "Sum the losses, and divide by the number of tokens of all ranks (all_reduce it), times the number of ranks where gradients are averaged.",
        ),
        averaged_twice: (
            "(on a GPU: `--probes light,invariants`) The loss is divided by the number of tokens of all ranks, and DDP averages",
            "Multiply the loss by the number of ranks: DDP divides by it.",
        ),
    },
    kept=_kept,
    keeps="order",
    explained_by=("nonfinite", "control_mismatch"),
)
