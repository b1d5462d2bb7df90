"""Gradients that are clipped, reduced or cleared at the wrong point of every step, on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Step,
    always,
    one_optimizer,
    phases,
    reduces_gradients,
    source,
    steps_of,
)
from nsadiag.analysis.relations.replica_sums import drift
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.single_call import only_call

Operations = tuple[Operation, ...]


def gradient_order(case: Case) -> Iterator[Draft | Declined]:
    steps = tuple(step for step in steps_of(case) if _trains(step))
    later = steps[1:]
    if one_optimizer(steps):
        yield from _clipped_too_early(case, steps)
        yield from _after_the_step(case, later)
        yield from _cleared_too_early(case, steps)
    yield from _still_scaled(case, steps)
    yield from _never_cleared(case, later)
    yield Declined(f"gradients are clipped, reduced and cleared before they are used, in {len(steps)} steps")


def _trains(step: Step) -> bool:
    return all(any(o.kind == "backward" for o in found) for found in step.ranks.values())


def _is_clip(operation: Operation) -> bool:
    return operation.kind == "clip"


def _acts(operation: Operation) -> bool:
    """Whether it may change gradients: a limit of infinity only computes the norm."""
    limit, norm = operation.limit, operation.value
    return operation.kind == "clip" and limit is not None and (norm is None or norm > limit)


def _first(operations: list[Operation] | Operations, kind: str) -> int | None:
    return next((n for n, o in enumerate(operations) if o.kind == kind), None)


def _clipped_too_early(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Clipping by each rank's own norm, before the reduction."""

    def clips_first(operations: Operations) -> bool:
        _, used = phases(operations)
        clip = _first(used, "clip")
        reduced = [n for n, o in enumerate(used) if reduces_gradients(o)]
        return clip is not None and bool(reduced) and clip < reduced[0]

    if not always(steps, clips_first):
        return
    norms = [{rank: found[0].value for rank, found in step.of("clip").items()} for step in steps]
    unequal = [
        (step.number, each) for step, each in zip(steps, norms, strict=True) if len(set(each.values())) > 1
    ]
    limits = [o.limit for step in steps for found in step.of("clip").values() for o in found if o.limit]
    acted = [n for each in norms for n in each.values() if n is not None and limits and n > min(limits)]
    if not unequal or not acted:
        return
    number, each = unequal[0]
    clip = next(iter(steps[0].of("clip").values()))[0]
    shown = ", ".join(f"rank {rank}: {norm:.6g}" for rank, norm in list(each.items())[:8] if norm is not None)
    yield _draft(
        case,
        "Each rank clips its gradients by its own norm before they are averaged: the optimizer does not use the clipped average, and the result depends on how the batch is divided.",
        clip,
        number,
        f"norm at step {number}, before the reduction: {shown}; limit {min(limits):g}",
        "Clip after the reduction: all ranks then have the same norm.",
    )


def _after_the_step(case: Case, later: tuple[Step, ...]) -> Iterator[Draft]:
    """Operations after the optimizer's step and never before it."""
    for kind, is_it in (("reduced", reduces_gradients), ("clipped", _is_clip)):
        if not always(later, functools.partial(_only_before, is_it)):
            continue
        drifted = drift(case.cell)
        if kind == "reduced" and drifted is None:
            continue
        if kind == "clipped" and not any(
            _acts(o) for s in later for found in s.ranks.values() for o in found
        ):
            continue
        operation = next(o for o in next(iter(later[0].ranks.values())) if is_it(o))
        more = {drifted.says: drifted.source} if drifted else {}
        yield _draft(
            case,
            f"Gradients are {kind} only after the optimizer has used them and then cleared, without any effect"
            + (", and the replicas diverge." if kind == "reduced" else "."),
            operation,
            later[0].number - 1,
            f"in {len(later)} steps, on every rank: step, {operation.name or kind}, backward, step",
            "Call it between backward and optimizer.step().",
            more,
        )


def _only_before(is_it: Callable[[Operation], bool], operations: Operations) -> bool:
    before, used = phases(operations)
    kept = any(o.kept for o in used if o.kind == "backward")
    return any(map(is_it, before)) and not any(map(is_it, used)) and not kept


def _still_scaled(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    def clips_scaled(operations: Operations) -> bool:
        _, used = phases(operations)
        clip = next((n for n, o in enumerate(used) if _acts(o)), None)
        unscaled = _first(used, "unscale")
        return clip is not None and unscaled is not None and clip < unscaled

    scaled = case.events[(case.events.kind == Kind.SCALER) & (case.events.phase == Phase.BEGIN)]
    if not always(steps, clips_scaled) or not bool((scaled.b > 1).any()):
        return
    clip = next(iter(steps[0].of("clip").values()))[0]
    scale = int(scaled.b.max())
    yield _draft(
        case,
        f"Gradients are clipped while they are still multiplied by the scaler's factor ({scale}), and unscaled afterwards: almost nothing of them is left.",
        clip,
        steps[0].number,
        f"in {len(steps)} steps, on every rank: backward, clip_grad_norm_"
        + (f" (norm {clip.value:.6g})" if clip.value is not None else "")
        + f", unscale_; scale {scale}",
        "Call scaler.unscale_(optimizer) before clip_grad_norm_.",
    )


def _never_cleared(case: Case, later: tuple[Step, ...]) -> Iterator[Draft]:
    """Gradients that the optimizer has used and that are still there at the next backward."""
    if len(later) < LEAST:
        return
    for number in {o.optimizer for step in later for found in step.of("step").values() for o in found}:
        if not always(later, functools.partial(_keeps, number)):
            continue
        backward = next(iter(later[0].of("backward").values()))[0]
        yield _draft(
            case,
            "Gradients are never cleared: each backward adds to those that the optimizer has already used.",
            backward,
            later[0].number,
            f"gradients that optimizer {number} had used were still there at each backward of {len(later)} steps, on every rank",
            "Call optimizer.zero_grad() once a step, before backward.",
        )


def _keeps(number: int | None, operations: Operations) -> bool:
    backwards = [o for o in operations if o.kind == "backward"]
    steps = [o for o in operations if o.kind == "step" and o.optimizer == number]
    # Older recordings do not say what a backward added to.
    grown = (o.kept if o.added is None else o.added for o in backwards)
    return bool(backwards and steps) and all(number in numbers for numbers in grown)


def _cleared_too_early(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Micro-batches inside `no_sync`, which only an accumulation needs, and whose gradients are gone at the next backward.

    One such backward may be meant, as in optimizers that look ahead; two from the line of the last one are not.
    """
    kinds = case.events[["kind", "phase"]]
    regions = int(((kinds.kind == Kind.GRAD_SYNC) & (kinds.phase == Phase.BEGIN)).sum())
    if regions < 2 * int((kinds.kind == Kind.STEP).sum()) or not always(steps, _starts_anew):
        return
    backward = next(iter(steps[0].of("backward").values()))[0]
    lost = len(next(iter(steps[0].of("backward").values()))) - 1
    yield _draft(
        case,
        f"Gradients are cleared before each micro-batch: of {lost + 1} backwards in a step the optimizer uses the last one alone.",
        backward,
        steps[0].number,
        f"in {len(steps)} steps, on every rank: {lost + 1} backwards from one line, each of which found no gradient of the one before",
        "Call optimizer.zero_grad() once a step, before the first micro-batch.",
        place=only_call(case.cell.code, "zero_grad"),
    )


def _starts_anew(operations: Operations) -> bool:
    backwards = [o for o in operations if o.kind == "backward"]
    return (
        len(backwards) > 2 and len({o.place for o in backwards}) == 1 and not any(o.kept for o in backwards)
    )


def _draft(
    case: Case,
    summary: str,
    at: Operation,
    step: int,
    claim: str,
    fix: str,
    more: Claims | None = None,
    *,
    place: Place | None = None,
) -> Draft:
    return Draft(
        strength=Strength.STRONG,
        summary=summary,
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(step=step, phase="backward").at(place or locations.of_text(at.place)),
        evidence={claim: source(case), **(more or {})},
        fix=fix,
    )


RULE = Rule(
    name="gradient_order",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="In every recorded step and on every rank, gradients are clipped by each rank's own norm before they are averaged (and the norms differ), clipped while they are still multiplied by the scaler's factor, reduced or clipped only after the optimizer used them, never cleared, or cleared before each micro-batch that no_sync accumulates",
    fix="Use this order: clear, backward, unscale, reduce, clip, step.",
    check=gradient_order,
    needs=("black_boxes",),
    explained_by=("reduce_operations",),
    confused_with=("healthy",),
)
