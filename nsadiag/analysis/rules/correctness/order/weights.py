"""Gradients that count more or less than once: micro-batches divided twice, or by more than there are, and shards scaled by factors of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Operations,
    Step,
    of_kind,
    one_optimizer,
    reduces_gradients,
    scaled,
    steps_of,
)
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.analysis.rules.correctness.order.words import are_of_one_line
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import by_rank, listed
from nsadiag.source.patterns.gradient_cuts import gradient_scaling
from nsadiag.source.patterns.single_call import factor_in_place

MANY = 6  # recorded steps
EXACT = 1e-4
APART = 1e-2  # of the factors of two ranks
TENSORS = 3


def _divided(backwards: list[Operation], by: int) -> bool:
    """Whether each is of a mean that was divided by that number, and by nothing else.

    What a loss is multiplied by is part of it, and so is what is divided by again in it: neither alone says anything.
    """
    return all(o.divisor == by and o.divisions == (by,) and o.averaged for o in backwards)


def _divided_twice(case: Case) -> Violation | str | None:
    """Gradients that were accumulated from losses divided by their number, and are divided by it again."""
    found = []
    for step, operations in _rows(case):
        backwards = of_kind(operations, "backward")
        if len(backwards) > 1 and any(o.kind == "made" for o in operations):
            if not _divided(backwards, len(backwards)) or not _are_divided(operations, len(backwards)):
                return "gradients of micro-batches are divided by their number once at most"
            found.append((step, backwards))
    if len(found) < MANY:
        return None
    first, backwards = found[0]
    number = len(backwards)
    return Violation(
        at=gradient_scaling(case.cell.code, number) or backwards[0].place,
        where=Where(step=first, phase="backward"),
        words={"count": number, "steps": len({step for step, _ in found})},
    )


def _rows(case: Case) -> Iterator[tuple[int, Operations]]:
    return ((step.number, operations) for step in steps_of(case) for operations in step.ranks.values())


def _are_divided(operations: Operations, by: int) -> bool:
    """Whether the optimizer uses gradients that are smaller by that factor than backward left them, and nothing else explains it."""
    last = max(n for n, o in enumerate(operations) if o.kind == "backward")
    if any(reduces_gradients(o) or o.kind in ("clip", "unscale") for o in operations[last:]):
        return False
    factors = scaled(operations)
    return bool(factors) and all(math.isclose(factor * by, 1, rel_tol=EXACT) for factor in factors)


def _short_windows(case: Case) -> Violation | str | None:
    """Steps that take fewer micro-batches than the usual number, and divide each loss by the usual number all the same.

    They recur between whole ones, as the rest of each epoch does. Who divides by more than there are in all steps, or turns to
    fewer for good, may mean it.
    """
    rows = [(step, of_kind(operations, "backward"), operations) for step, operations in _rows(case)]
    usual = max((len(backwards) for _, backwards, _ in rows), default=0)
    plain = all(_divided(backwards, usual) and are_of_one_line(backwards) for _, backwards, _ in rows)
    if usual < 2 or not plain or not one_optimizer(steps_of(case)):
        return None
    short = {step: len(backwards) for step, backwards, _ in rows if len(backwards) < usual}
    whole = [step for step, backwards, _ in rows if len(backwards) == usual]
    between = [step for step in short if min(whole) < step < max(whole)]
    # What is put right later makes gradients larger again.
    grown = any(max(scaled(ops), default=1.0) > 1 + EXACT for step, _, ops in rows if step in short)
    if len(between) < LEAST - 1 or len(short) > len(set(whole)) or grown:
        return "each step takes as many micro-batches as their losses are divided by"
    first = between[0]
    return Violation(
        at=next(backwards[0].place for step, backwards, _ in rows if step == first),
        where=Where(step=first, phase="backward"),
        words={
            "usual": usual,
            "number": short[first],
            "steps": listed(sorted(short)),
            "factor": f"{usual / short[first]:g}",
            "step": first,
        },
    )


def _own_factors(case: Case) -> Violation | str | None:
    """Only where FSDP shards one model over all ranks: what it leaves on each is a part of one gradient."""
    everyone, steps = case.cell.world_size, steps_of(case)
    sharded = all(r.units and all(len(u.ranks) == everyone for u in r.units) for r in case.cell.ranks)
    if not sharded or not one_optimizer(steps):
        return None
    known = [(step, factors) for step in steps if (factors := _factors(step)) is not None]
    apart = [(step, f) for step, f in known if max(f.values()) - min(f.values()) > APART * max(f.values())]
    if len(known) < LEAST or len(apart) < len(known) / 2:
        return "the gradients of shards are used as FSDP leaves them, or scaled alike on all ranks"
    step, factors = apart[0]
    return Violation(
        at=factor_in_place(case.cell.code) or step.on_first("step")[0].place,
        where=Where(step=step.number, phase="optimizer"),
        words={
            "apart": len(apart),
            "known": len(known),
            "step": step.number,
            "factors": by_rank(factors, ".4g"),
        },
    )


def _factors(step: Step) -> dict[int, float] | None:
    """By rank, the one factor between its gradients as backward left them and as they are used; None where a rank has none or several."""
    found = {}
    for rank, operations in step.ranks.items():
        ratios = scaled(operations)
        if len(ratios) < TENSORS or not max(ratios) - min(ratios) <= EXACT * max(ratios):
            return None
        found[rank] = min(ratios)
    return found


RULES = rules_of(
    Expectation(
        name="divided_twice",
        detected="(on a GPU: `--probes light,invariants`) Losses of micro-batches are divided by their number, and the gradients again",
        find=_divided_twice,
        says="Each of {count} micro-batches' losses is divided by {count}, and the sum of their gradients is divided by {count} again: it is {count} times too small.",
        claim="in each of {steps} steps: {count} backwards from losses divided by {count}; the optimizer uses 1/{count} of the gradients that they left",
        fix="Divide once: the losses, or the gradients.",
    ),
    Expectation(
        name="short_window",
        detected="(on a GPU: `--probes light,invariants`) Steps that recur take fewer micro-batches than others, as the rest of each epoch, and divide each loss by the full number",
        find=_short_windows,
        says="Step {step} takes {number} of the usual {usual} micro-batches, and their losses are divided by {usual} all the same: its gradient is {factor} times too small, as in each such step.",
        claim="in steps {steps} fewer backwards than in others, each of them from a mean divided by {usual}",
        fix="Divide by the number of micro-batches that the window holds: the last one of an epoch may hold fewer.",
    ),
    Expectation(
        name="own_shard_factors",
        detected="(on a GPU: `--probes light,invariants`) Each rank of a model in FSDP scales the gradients of its shards by another factor before the optimizer uses them",
        find=_own_factors,
        says="Between backward and the optimizer's step each rank scales all its gradients by one factor of its own, in {apart} of {known} steps: the shards of one gradient get different factors, as by a norm over the rank's own shards.",
        claim="gradients as used, divided by what backward left, at step {step}: {factors}",
        fix="Compute the norm over all shards: add the squares of each rank's own norm by an all_reduce, or use clip_grad_norm_ on FSDP's own parameters.",
        strength=Strength.STRONG,
    ),
    keeps="order",
    explained_by=("nonfinite", "control_mismatch"),
)
