"""Gradients that are clipped, reduced or unscaled in another order, used twice, or thrown away before they were used."""

from __future__ import annotations

import itertools
import math
import re

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Operations,
    Step,
    of_kind,
    one_optimizer,
    reduces_gradients,
    scaled,
    source,
)
from nsadiag.analysis.relations.replica_sums import drift
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.analysis.rules.correctness.order.words import (
    NEAR,
    are_of_one_line,
    backwards_of,
    first_of,
    letter,
    matches,
    optimizers_of,
    training_steps,
    uses_the_last,
    word,
)
from nsadiag.analysis.rules.correctness.silent_error import whose
from nsadiag.evidence.documents.operations import Checksum
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.single_call import only_clearing

# Clipping that belongs to what a rank does before it exchanges anything: behind each of several backwards, as for samples of
# private training; or what is reduced is not what was clipped, as where the largest elements alone are sent.
OWN_CLIPPING = r"[ab].*[cn].*[ab]|w"


def _clipped_before_reduction(case: Case) -> Violation | str | None:
    steps = training_steps(case)
    ordered = one_optimizer(steps) and matches(r"^[^ab]*[ab][^cnrw]*[cn].*[rw]", steps)
    # Of so few steps as a cut recording has, too: here the pattern clears a job.
    later = [word(operations) for step in steps[1:] for operations in step.ranks.values()]
    if not ordered or all(re.search(OWN_CLIPPING, each) for each in later):
        return "no clipping precedes the reduction of what it clips" if steps else None
    norms = {s.number: {r: found[0].value for r, found in s.of("clip").items()} for s in steps}
    unequal = next((n for n, each in norms.items() if len(set(each.values())) > 1), None)
    limits = (o.limit for s in steps for ops in s.ranks.values() for o in ops if o.limit)
    limit, known = min(limits, default=math.inf), [v for each in norms.values() for v in each.values() if v]
    if unequal is None or max(known, default=0.0) <= limit:
        return "clipping before the reduction changes nothing"
    return Violation(
        at=first_of("cn", steps[0]).place,
        where=Where(step=unequal, phase="backward"),
        words={
            "step": unequal,
            "norms": by_rank({r: v for r, v in norms[unequal].items() if v is not None}, ".6g"),
            "limit": limit,
        },
    )


def _reduced_after_use(case: Case) -> Violation | str | None:
    later = training_steps(case)[1:]
    drifted = drift(case.cell)
    if not _comes_too_late("rw", later) or drifted is None:
        return None
    reduction = first_of("rw", later[0])
    claim = f"in {len(later)} steps, on every rank: step, {reduction.name}, backward, step"
    more = {claim: source(case), drifted.says: drifted.source}
    return Violation(at=reduction.place, where=_before(later[0]), more=more)


def _clipped_after_use(case: Case) -> Violation | str | None:
    later = training_steps(case)[1:]
    if not _comes_too_late("cn", later) or not any(
        "c" in word(ops) for s in later for ops in s.ranks.values()
    ):
        return None
    return Violation(at=first_of("cn", later[0]).place, where=_before(later[0]), words={"steps": len(later)})


def _changed_on_some(case: Case) -> Violation | str | None:
    """Gradients that the same ranks clip in every step before they are reduced, and the others never.

    Whatever else one rank writes into its own may be meant, as noise that is added once.
    """
    steps = training_steps(case)[1:]  # in the first, no optimizer is known yet, nor what is reduced
    each = [{rank for rank, ops in s.ranks.items() if re.search("[cn]", word(ops))} for s in steps]
    acts = sum(bool(re.search(r"c[^ab]*[rw]", word(ops))) for s in steps for ops in s.ranks.values())
    if not matches(r"[ab].*[rw]", steps) or not acts or any(ranks != each[0] for ranks in each):
        return None
    if not each[0] or len(each[0]) == len(steps[0].ranks):
        return "all ranks clip gradients before they are reduced, or none"
    rank = min(each[0])
    clip = steps[0].of("clip")[rank][0]
    return Violation(
        at=clip.place,
        where=Where(step=steps[0].number, phase="backward"),
        words={"whose": whose(case, each[0]), "times": acts, "steps": len(steps)},
        ranks=each[0],
        shown_by=rank,
    )


def _comes_too_late(letters: str, later: tuple[Step, ...]) -> bool:
    """Whether it is found behind the optimizer's step alone, and what it changes is gone at the next backward."""
    return one_optimizer(later) and matches(rf"^[^ab]*[{letters}][^ab]*b[^a{letters}]*$", later)


def _before(step: Step) -> Where:
    return Where(step=step.number - 1, phase="backward")


def _clipped_while_scaled(case: Case) -> Violation | str | None:
    steps, scalers = training_steps(case), case.begun(Kind.SCALER)
    if not matches(r"^[^ab]*[ab][^cu]*c.*u", steps) or not bool((scalers.b > 1).any()):
        return None
    clip = next(o for o in steps[0].on_first("clip"))
    norm = f" (norm {clip.value:.6g})" if clip.value is not None else ""
    return Violation(
        at=clip.place,
        where=Where(step=steps[0].number, phase="backward"),
        words={"scale": int(scalers.b.max()), "steps": len(steps), "norm": norm},
    )


def _never_cleared(case: Case) -> Violation | str | None:
    """Gradients that the optimizer has used and that are still there at the next backward."""
    later = training_steps(case)[1:]
    rows = [(step, operations) for step in later for operations in step.ranks.values()]
    for number in optimizers_of(later) if len(later) >= LEAST else ():
        kept = all(_keeps(number, operations) for _, operations in rows)
        # What is written into used gradients again and again decays; DDP does so once, for its buckets.
        first = next(iter(later[0].ranks))
        rewritten = sum(any(number in o.rewritten for o in step.ranks[first]) for step in later)
        if kept and rewritten <= 1:
            return Violation(
                at=later[0].on_first("backward")[0].place,
                where=Where(step=later[0].number, phase="backward"),
                words={"optimizer": number, "steps": len(later)},
            )
    return "gradients are gone when the next backward begins" if later else None


def _keeps(number: int | None, operations: Operations) -> bool:
    backwards = of_kind(operations, "backward")
    steps = [o for o in operations if o.kind == "step" and o.optimizer == number]
    # Older recordings do not say what a backward added to.
    grown = (set(o.kept if o.added is None else o.added) - set(o.unread) for o in backwards)
    return bool(backwards and steps) and all(number in numbers for numbers in grown)


def _cleared_between_backwards(case: Case) -> Violation | str | None:
    """Gradients that are gone at the next backward, of micro-batches that are to be accumulated.

    They are where each is inside `no_sync`, or each loss is divided by their number.
    """
    later = training_steps(case)[1:]
    steps = int((case.events.kind == Kind.STEP).sum())
    in_no_sync = steps > 0 and len(case.begun(Kind.GRAD_SYNC)) >= 2 * steps
    ranks = [
        rank
        for rank in (later[0].ranks if len(later) >= LEAST and one_optimizer(later) else ())
        if all((in_no_sync and _starts_anew(s, rank)) or _throws_away(s.ranks[rank]) for s in later)
    ]
    if not ranks:
        return None
    backwards = backwards_of(later[0], ranks[0])
    return Violation(
        at=only_clearing(case.cell.code) or backwards[0].place,
        where=Where(step=0, phase="backward"),
        words={
            "whose": whose(case, ranks),
            "backwards": len(backwards),
            "steps": count(len(later), "step"),
            "anew": sum(not o.may_keep for o in backwards[1:]),
        },
        ranks=ranks,
        shown_by=ranks[0],
    )


def _starts_anew(step: Step, rank: int) -> bool:
    """Whether no backward finds gradients of before, and the optimizer uses what the last left.

    One behind another may be meant so, as in optimizers that look ahead; two from the line of the last one are not.
    """
    operations, backwards = step.ranks[rank], backwards_of(step, rank)
    if len(backwards) < 3 or not are_of_one_line(backwards) or any(o.may_keep for o in backwards):
        return False
    if scaled(operations):
        return uses_the_last(operations) or _uses_the_average(step, rank)
    # Nothing is known to have been collected elsewhere.
    last = operations[operations.index(backwards[-1]) :]
    return any(map(reduces_gradients, last)) or not any(o.written for o in last)


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
    if not divided or not are_of_one_line(backwards) or not uses_the_last(operations):
        return False
    order = [o for o in operations if letter(o) in ("a", "b") or (o.kind == "made" and o.values)]
    pairs = itertools.pairwise(order)
    return any(one.kind == "made" and letter(two) == "b" for one, two in pairs)


RULES = rules_of(
    Expectation(
        name="clipped_before_reduction",
        detected="In every recorded step, gradients are clipped by each rank's own norm before they are averaged, and the norms differ",
        find=_clipped_before_reduction,
        says="Each rank clips its gradients by its own norm before they are averaged: the optimizer does not use the clipped average, and the result depends on how the batch is divided.",
        claim="norm at step {step}, before the reduction: {norms}; limit {limit:g}",
        fix="Clip after the reduction: all ranks then have the same norm.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="changed_on_some",
        detected="In every recorded step, the same ranks clip their gradients before they are averaged, and the others never do",
        find=_changed_on_some,
        says="Only {whose} clips gradients before they are averaged: its share of the average is not what its peers' are.",
        claim="in each of {steps} steps gradients of {whose} alone were clipped between backward and the reduction, {times} times with an effect",
        fix="Do the same on all ranks, after the reduction; get a norm for a log by a function that changes nothing.",
    ),
    Expectation(
        name="reduced_after_use",
        detected="Gradients are reduced only after the optimizer used them and then cleared, and the replicas diverge",
        find=_reduced_after_use,
        says="Gradients are reduced only after the optimizer has used them and then cleared, without any effect, and the replicas diverge.",
        claim="",
        fix="Call it between backward and optimizer.step().",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="clipped_after_use",
        detected="Gradients are clipped only after the optimizer used them, and then cleared",
        find=_clipped_after_use,
        says="Gradients are clipped only after the optimizer has used them and then cleared, without any effect.",
        claim="in {steps} steps, on every rank: step, clipped, backward, step",
        fix="Call it between backward and optimizer.step().",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="cleared_between_backwards",
        detected="Gradients are cleared between micro-batches that no_sync accumulates or (on a GPU: `--probes light,invariants`) whose losses are divided by their number",
        find=_cleared_between_backwards,
        says="Gradients are cleared between the micro-batches of a step on {whose}: of {backwards}, the optimizer uses what came after the last clearing alone.",
        claim="in {steps}: {backwards} backwards from one line, and {anew} behind the first found no gradient of the one before",
        fix="Clear gradients once a step, before the first micro-batch.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="clipped_while_scaled",
        detected="Gradients are clipped while they are still multiplied by the scaler's factor, and unscaled afterwards",
        find=_clipped_while_scaled,
        says="Gradients are clipped while they are still multiplied by the scaler's factor ({scale}), and unscaled afterwards: almost nothing of them is left.",
        claim="in {steps} steps, on every rank: backward, clip_grad_norm_{norm}, unscale_; scale {scale}",
        fix="Call scaler.unscale_(optimizer) before clip_grad_norm_.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="never_cleared",
        detected="Gradients that the optimizer has used are still there at each next backward, which adds to them",
        find=_never_cleared,
        says="Gradients are never cleared: each backward adds to those that the optimizer has already used.",
        claim="gradients that optimizer {optimizer} had used were still there at each backward of {steps} steps, on every rank",
        fix="Call optimizer.zero_grad() once a step, before backward.",
        strength=Strength.STRONG,
    ),
    keeps="order",
    needs=("black_boxes",),
    explained_by=("summed_after_each_backward",),
)
