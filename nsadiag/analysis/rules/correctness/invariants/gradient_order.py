"""Gradients that are clipped, reduced or cleared at the wrong point of every step, on every rank."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Operations,
    Step,
    always,
    of_kind,
    one_optimizer,
    phases,
    reduces_gradients,
    scaled,
    source,
    steps_of,
)
from nsadiag.analysis.relations.replica_sums import drift
from nsadiag.analysis.rules.correctness.silent_error import silent_error, whose
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.single_call import only_clearing

NEAR = 1e-3  # of the quotient of two gradients' sizes
Test = Callable[[Operation], bool]


def gradient_order(case: Case) -> Iterator[Draft | Declined]:
    steps = tuple(step for step in steps_of(case) if all(step.of("backward").values()))
    later = steps[1:]
    if one_optimizer(steps):
        yield from _clipped_too_early(case, steps)
        yield from _after_the_step(case, later)
        yield from _cleared_too_early(case, later)
    yield from _still_scaled(case, steps)
    yield from _never_cleared(case, later)
    yield Declined(
        f"gradients are clipped, reduced and cleared before they are used, in {count(len(steps), 'step')}"
        if steps
        else "no training step was recorded on all ranks"
    )


def _is_clip(operation: Operation) -> bool:
    return operation.kind == "clip"


def _is_unscale(operation: Operation) -> bool:
    return operation.kind == "unscale"


def _acts(operation: Operation) -> bool:
    """Whether it may change gradients: a limit of infinity only computes the norm."""
    limit, norm = operation.limit, operation.value
    return operation.kind == "clip" and limit is not None and (norm is None or norm > limit)


def _precedes(one: Test, other: Test, operations: Operations) -> bool:
    """Whether behind backward there are operations of both kinds, one of the first kind before all of the second."""
    _, used = phases(operations)
    first, second = (next((n for n, o in enumerate(used) if is_it(o)), None) for is_it in (one, other))
    return first is not None and second is not None and first < second


def _clipped_too_early(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Clipping by each rank's own norm, before the reduction."""
    if not always(steps, functools.partial(_precedes, _is_clip, reduces_gradients)):
        return
    if all(_clips_for_itself(operations) for step in steps[1:] for operations in step.ranks.values()):
        return
    clips = {step.number: {rank: found[0] for rank, found in step.of("clip").items()} for step in steps}
    norms = {n: {r: o.value for r, o in each.items() if o.value is not None} for n, each in clips.items()}
    unequal = [n for n, each in clips.items() if len({o.value for o in each.values()}) > 1]
    limit = min(
        (o.limit for s in steps for ops in s.ranks.values() for o in ops if o.limit), default=math.inf
    )
    if not unequal or not any(norm > limit for each in norms.values() for norm in each.values()):
        return
    yield silent_error(
        case,
        "Each rank clips its gradients by its own norm before they are averaged: the optimizer does not use the clipped average, and the result depends on how the batch is divided.",
        f"norm at step {unequal[0]}, before the reduction: {by_rank(norms[unequal[0]], '.6g')}; limit {limit:g}",
        steps[0].on_first("clip")[0].place,
        Where(step=unequal[0], phase="backward"),
        "Clip after the reduction: all ranks then have the same norm.",
    )


def _clips_for_itself(operations: Operations) -> bool:
    """Whether clipping belongs to what the ranks do before they exchange anything.

    It is behind each of several backwards, as for samples of private training; or what is reduced is not what was clipped,
    as where the largest elements alone are sent.
    """
    wanted = [o.kind for o in operations if o.kind in ("backward", "clip")]
    between = wanted[wanted.index("backward") : len(wanted) - wanted[::-1].index("backward")]
    return "clip" in between or any(o.written and reduces_gradients(o) for o in operations)


def _after_the_step(case: Case, later: tuple[Step, ...]) -> Iterator[Draft]:
    """Operations after the optimizer's step and never before it."""
    for kind, is_it in (("reduced", reduces_gradients), ("clipped", _is_clip)):
        if not always(later, functools.partial(_only_before, is_it)):
            continue
        drifted = drift(case.cell)
        acts = any(_acts(o) for step in later for found in step.ranks.values() for o in found)
        if not (drifted if kind == "reduced" else acts):
            continue
        operation = next(o for o in next(iter(later[0].ranks.values())) if is_it(o))
        more = ", and the replicas diverge" if kind == "reduced" else ""
        yield silent_error(
            case,
            f"Gradients are {kind} only after the optimizer has used them and then cleared, without any effect{more}.",
            {
                f"in {len(later)} steps, on every rank: step, {operation.name or kind}, backward, step": source(
                    case
                ),
                **({drifted.says: drifted.source} if drifted else {}),
            },
            operation.place,
            Where(step=later[0].number - 1, phase="backward"),
            "Call it between backward and optimizer.step().",
        )


def _only_before(is_it: Test, operations: Operations) -> bool:
    before, used = phases(operations)
    kept = any(o.may_keep for o in used if o.kind == "backward")
    return any(map(is_it, before)) and not any(map(is_it, used)) and not kept


def _still_scaled(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    scalers = case.begun(Kind.SCALER)
    clips_scaled = functools.partial(_precedes, _acts, _is_unscale)
    if not always(steps, clips_scaled) or not bool((scalers.b > 1).any()):
        return
    clip, scale = steps[0].on_first("clip")[0], int(scalers.b.max())
    norm = f" (norm {clip.value:.6g})" if clip.value is not None else ""
    yield silent_error(
        case,
        f"Gradients are clipped while they are still multiplied by the scaler's factor ({scale}), and unscaled afterwards: almost nothing of them is left.",
        f"in {len(steps)} steps, on every rank: backward, clip_grad_norm_{norm}, unscale_; scale {scale}",
        clip.place,
        Where(step=steps[0].number, phase="backward"),
        "Call scaler.unscale_(optimizer) before clip_grad_norm_.",
    )


def _never_cleared(case: Case, later: tuple[Step, ...]) -> Iterator[Draft]:
    """Gradients that the optimizer has used and that are still there at the next backward."""
    if len(later) < LEAST:
        return
    for number in {o.optimizer for step in later for found in step.of("step").values() for o in found}:
        if not always(later, functools.partial(_keeps, number)) or _are_rewritten(number, later):
            continue
        yield silent_error(
            case,
            "Gradients are never cleared: each backward adds to those that the optimizer has already used.",
            f"gradients that optimizer {number} had used were still there at each backward of {len(later)} steps, on every rank",
            later[0].on_first("backward")[0].place,
            Where(step=later[0].number, phase="backward"),
            "Call optimizer.zero_grad() once a step, before backward.",
        )


def _keeps(number: int | None, operations: Operations) -> bool:
    backwards = of_kind(operations, "backward")
    steps = [o for o in operations if o.kind == "step" and o.optimizer == number]
    # Older recordings do not say what a backward added to.
    grown = (set(o.kept if o.added is None else o.added) - set(o.unread) for o in backwards)
    return bool(backwards and steps) and all(number in numbers for numbers in grown)


def _are_rewritten(number: int | None, later: tuple[Step, ...]) -> bool:
    """Whether the job writes into used gradients again and again, as where they decay; DDP does so once, for its buckets."""
    first = next(iter(later[0].ranks))
    rewritten = (any(number in o.rewritten for o in step.ranks[first]) for step in later)
    return sum(rewritten) > 1


def _cleared_too_early(case: Case, later: tuple[Step, ...]) -> Iterator[Draft]:
    """Gradients that are gone at the next backward, of micro-batches that are to be accumulated.

    They are where each is inside `no_sync`, or each loss is divided by their number.
    """
    steps = int((case.events.kind == Kind.STEP).sum())
    in_no_sync = steps > 0 and len(case.begun(Kind.GRAD_SYNC)) >= 2 * steps
    ranks = [
        rank
        for rank in (later[0].ranks if len(later) >= LEAST else ())
        if all((in_no_sync and _starts_anew(s, rank)) or _throws_away(s.ranks[rank]) for s in later)
    ]
    if not ranks:
        return
    backwards = of_kind(later[0].ranks[ranks[0]], "backward")
    anew = sum(not o.may_keep for o in backwards[1:])
    yield silent_error(
        case,
        f"Gradients are cleared between the micro-batches of a step on {whose(case, ranks)}: of {len(backwards)}, the optimizer uses what came after the last clearing alone.",
        f"in {count(len(later), 'step')}: {len(backwards)} backwards from one line, and {anew} behind the first found no gradient of the one before",
        only_clearing(case.cell.code) or backwards[0].place,
        Where(step=0, phase="backward"),
        "Clear gradients once a step, before the first micro-batch.",
        ranks=ranks,
        shown_by=ranks[0],
    )


def _starts_anew(step: Step, rank: int) -> bool:
    """Whether no backward finds gradients of before, and the optimizer uses what the last left.

    One behind another may be meant so, as in optimizers that look ahead; two from the line of the last one are not.
    """
    operations = step.ranks[rank]
    backwards = of_kind(operations, "backward")
    anew = len(backwards) > 2 and _are_of_one_line(backwards) and not any(o.may_keep for o in backwards)
    return anew and _comes_of_the_last(step, rank)


def _comes_of_the_last(step: Step, rank: int) -> bool:
    """Whether nothing is known to have been collected elsewhere."""
    operations = step.ranks[rank]
    if scaled(operations):
        return _uses_the_last(operations) or _uses_the_average(step, rank)
    last = max(n for n, o in enumerate(operations) if o.kind == "backward")
    reduced = any(map(reduces_gradients, operations[last:]))
    return reduced or not any(o.written for o in operations[last:])


def _uses_the_average(step: Step, rank: int) -> bool:
    """Whether the optimizer's gradients are the ranks' average of those after the last backward, times one number."""
    made, used = _last_of("made", step), _last_of("used", step)[rank]
    names = [name for name in used if all(name in each for each in made.values())]
    whole = {name: sum(each[name].total for each in made.values()) for name in names}
    squares = sum(total**2 for total in whole.values())
    factor = sum(used[name].total * whole[name] for name in names) / squares if squares else 0.0
    size = {name: abs(factor) * sum(each[name].magnitude for each in made.values()) for name in names}
    return bool(factor) and all(
        abs(used[name].total - factor * whole[name]) <= NEAR * size[name] for name in names
    )


def _last_of(kind: str, step: Step) -> dict[int, dict[str, Checksum]]:
    """By rank and name, the gradients that the last operations of the kind found."""
    return {rank: {v.name: v for o in found for v in o.values} for rank, found in step.of(kind).items()}


def _throws_away(operations: Operations) -> bool:
    """Whether what a backward from a divided loss leaves is gone at the next, and the optimizer uses what the last left.

    What is accumulated elsewhere, as FSDP does, lies in no parameter when the backward is over.
    """
    backwards = of_kind(operations, "backward")
    divided = all(o.divisor is not None and round(o.divisor, 3) == len(backwards) for o in backwards)
    if not divided or not _are_of_one_line(backwards) or not _uses_the_last(operations):
        return False
    order = [o for o in operations if o.kind == "backward" or (o.kind == "made" and o.values)]
    pairs = itertools.pairwise(order)
    return any(one.kind == "made" and two.kind == "backward" and not two.may_keep for one, two in pairs)


def _are_of_one_line(backwards: list[Operation]) -> bool:
    return len({o.place for o in backwards}) == 1


def _uses_the_last(operations: Operations) -> bool:
    """Whether the optimizer's gradients are those after the last backward, or these times one number, as clipping does."""
    factors = scaled(operations)
    return bool(factors) and max(factors) - min(factors) <= NEAR * max(factors)


RULE = Rule(
    family="correctness",
    detected="In every recorded step and on every rank, gradients are clipped by each rank's own norm before they are averaged (and the norms differ), clipped while they are still multiplied by the scaler's factor, reduced or clipped only after the optimizer used them, never cleared, or cleared between micro-batches that no_sync accumulates or (`--probes light,invariants`) whose losses are divided by their number",
    fix="Use this order: clear, backward, unscale, reduce, clip, step.",
    check=gradient_order,
    needs=("black_boxes",),
    explained_by=("reduce_operations",),
)
