"""Losses that weigh wrongly: another factor on some ranks, a mean over each rank's own tokens, two divisions by the micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.losses import averages_gradients, backwards_of, weights_of
from nsadiag.analysis.relations.invariants.operations import reduces_gradients, source, steps_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.gradient_cuts import gradient_scaling
from nsadiag.source.patterns.single_call import call_near, scaled_loss

LEAST = 6  # recorded steps
FEW = 3  # steps of scalers
UNEVEN = (
    1.5  # the least ratio between the weights of a token that is no coincidence where it holds in every step
)
EXACT = 1e-4


def loss_weights(case: Case) -> Iterator[Draft | Declined]:
    yield from _other_scale(case)
    yield from _unequal(case)
    yield from _divided_twice(case)
    yield Declined(f"the ranks' losses have the same weight, in {len(backwards_of(case))} steps")


def _other_scale(case: Case) -> Iterator[Draft]:
    """Gradient scalers that go on with different scales, where gradients are reduced before they are unscaled."""
    begun = case.events[(case.events.kind == Kind.SCALER) & (case.events.phase == Phase.BEGIN)]
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
    apart = next(
        (n for n in range(len(scales)) if all(len(set(found.values())) > 1 for found in scales[n:])), None
    )
    if apart is None or len(scales) - apart < FEW:
        return
    row = next(iter(each.values())).iloc[max(apart - 1, 0)]
    odd = outlier_ranks(scales[apart], case.cell.weight)
    shown = ", ".join(f"rank {rank}: {scale}" for rank, scale in list(scales[apart].items())[:8])
    yield _draft(
        case,
        f"From step {int(row.step) + (apart > 0)} on the ranks multiply their losses by different scales ({shown}), and average the gradients before they divide by them: each rank has another weight.",
        int(row.step),
        locations.of_text(str(row.site)),
        f"scale at each of the last {len(scales) - apart} steps of the scalers, first: {shown}",
        odd,
        "Let all ranks skip a step together: reduce what each scaler found (MAX), or use one that knows of shards.",
        shows=f"{case.cell.rank(odd[0]).source}/blackbox.bin",
    )


def _unscales_first(operations: tuple[Operation, ...]) -> bool:
    """Whether gradients are unscaled before the user's code reduces them."""
    unscaled = False
    for operation in operations:
        unscaled = operation.kind == "unscale" or (unscaled and operation.kind != "backward")
        if unscaled and reduces_gradients(operation):
            return True
    return False


def _unequal(case: Case) -> Iterator[Draft]:
    """Rows of one rank that weigh more than those of another, always to the same side, where all ranks weigh alike in the average."""
    weights = weights_of(case)
    if (
        len(weights) < LEAST
        or not averages_gradients(case)
        or not all(w.comparable for w in weights.values())
    ):
        return
    leading = set()
    for found in weights.values():
        each = found.each
        if max(each.values()) < UNEVEN * min(each.values()):
            return
        leading.add(max(each, key=lambda rank: each[rank]))
    if len(leading) > 1:
        return
    first = min(weights)
    factors = weights[first].factors
    backward = next(iter(backwards_of(case)[0].ranks.values()))[0]
    yield (
        _other_factor(case, factors, backward, first)
        if len(set(factors.values())) > 1
        else _own_mean(case, backward, first)
    )


def _other_factor(case: Case, factors: dict[int, float], backward: Operation, step: int) -> Draft:
    odd = outlier_ranks(factors, case.cell.weight)
    odd = tuple(rank for rank in odd if factors[rank] != 1) or odd
    shown = ", ".join(f"rank {rank}: {factor:g}" for rank, factor in list(factors.items())[:8])
    return _draft(
        case,
        f"The loss of rank {case.cell.names(odd)} is multiplied by another factor than that of its peers ({shown}), over batches of the same size: it has another weight in the average of the gradients.",
        step,
        scaled_loss(case.cell.code) or locations.of_text(backward.place),
        f"factor of the loss that backward began with, at step {step}: {shown}",
        odd,
        "Multiply the loss by the same factor on all ranks.",
    )


def _own_mean(case: Case, backward: Operation, step: int) -> Draft:
    shown = "; ".join(
        f"step {n}: " + ", ".join(f"rank {r}: {t.counted:g}" for r, t in list(w.terms.items())[:8])
        for n, w in list(weights_of(case).items())[:3]
    )
    return _draft(
        case,
        "Each rank's loss is a mean over its own tokens, and then the ranks are averaged with equal weight, although their numbers of tokens differ in every step: a token counts more on one rank than on another.",
        step,
        call_near(case.cell.code, "cross_entropy", locations.of_text(backward.place))
        or locations.of_text(backward.place),
        f"targets that are not ignored: {shown}",
        tuple(rank.rank for rank in case.cell.ranks),
        "Sum the losses, and divide by the number of tokens of all ranks (all_reduce it), times the number of ranks where gradients are averaged.",
    )


def _divided_twice(case: Case) -> Iterator[Draft]:
    """Gradients that were accumulated from losses divided by their number, and are divided by it again."""
    found = []
    for step in steps_of(case):
        for operations in step.ranks.values():
            backwards = [o for o in operations if o.kind == "backward"]
            count = len(backwards)
            if count < 2 or not any(o.kind == "made" for o in operations):
                continue
            again = any(o.divisor == count * count for o in backwards) or (
                all(o.divisor == count for o in backwards) and _is_divided(operations, count)
            )
            if not again:
                return
            found.append((step.number, count, backwards[0]))
    if len(found) < LEAST:
        return
    first, count, backward = found[0]
    yield _draft(
        case,
        f"Each of {count} micro-batches' losses is divided by {count}, and the sum of their gradients is divided by {count} again: it is {count} times too small.",
        first,
        gradient_scaling(case.cell.code, count) or locations.of_text(backward.place),
        f"in each of {len({n for n, _, _ in found})} steps: {count} backwards from losses divided by {count}; the optimizer uses 1/{count} of the gradients that they left",
        tuple(rank.rank for rank in case.cell.ranks),
        "Divide once: the losses, or the gradients.",
    )


def _is_divided(operations: tuple[Operation, ...], count: int) -> bool:
    """Whether the optimizer uses gradients that are smaller by that factor than backward left them, and nothing else explains it."""
    last = max(n for n, o in enumerate(operations) if o.kind == "backward")
    if any(reduces_gradients(o) or o.kind in ("clip", "unscale") for o in operations[last:]):
        return False
    made: dict[tuple[int | None, str], Checksum] = {}
    for operation in operations:
        if operation.kind == "made":
            made |= {(operation.optimizer, v.name): v for v in operation.values}
    used = [(o.optimizer, v) for o in operations if o.kind == "used" for v in o.values]
    pairs = [(made[n, v.name].magnitude, v.magnitude) for n, v in used if (n, v.name) in made]
    known = [(before, after) for before, after in pairs if before]
    return bool(known) and all(math.isclose(after * count, before, rel_tol=EXACT) for before, after in known)


def _draft(
    case: Case,
    summary: str,
    step: int,
    place: Place | None,
    claim: str,
    ranks: tuple[int, ...],
    fix: str,
    *,
    shows: str = "",
) -> Draft:
    return Draft(
        strength=Strength.LIKELY,
        summary=summary,
        guilty_ranks=ranks,
        where=Where(step=step, phase="backward").at(place),
        evidence={claim: shows or source(case)},
        fix=fix,
    )


RULE = Rule(
    name="loss_weights",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="Gradient scalers of ranks that average scaled gradients go on with different scales; or (`--probes light,invariants`) the loss has another factor on some ranks; or is a mean over each rank's own tokens, of which one rank always has more; or micro-batches are divided by their number twice",
    fix="Give every token the same weight: sum, and divide once, by what all ranks have together.",
    check=loss_weights,
    explained_by=("nonfinite", "control_mismatch"),
    confused_with=("healthy",),
)
