"""A step as a word: one letter for each operation that makes, changes or uses gradients, in their order."""

from __future__ import annotations

import re

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Operations,
    Step,
    of_kind,
    reduces_gradients,
    scaled,
    steps_of,
)
from nsadiag.evidence.documents.operations import Operation

NEAR = 1e-3  # of the quotient of two gradients' sizes


def letter(o: Operation) -> str:
    """b: a backward, a: one that may add to gradients of before; r: a reduction, w: of what was rewritten; c: a clipping that
    acts, n: one that computes a norm; u: an unscaling; s: a step.
    """
    if o.kind == "backward":
        return "a" if o.may_keep else "b"
    if o.kind == "clip":
        acts = o.limit is not None and (o.value is None or o.value > o.limit)
        return "c" if acts else "n"
    if reduces_gradients(o):
        return "w" if o.written else "r"
    return {"unscale": "u", "step": "s"}.get(o.kind, "")


def word(operations: Operations) -> str:
    """The letters of a rank's step."""
    return "".join(map(letter, operations))


def matches(pattern: str, steps: tuple[Step, ...]) -> bool:
    """Whether every rank's word has the pattern in every step, of which there are enough."""
    words = (word(operations) for step in steps for operations in step.ranks.values())
    return len(steps) >= LEAST and all(re.search(pattern, each) for each in words)


def first_of(letters: str, step: Step) -> Operation:
    """The first operation of these letters on the first rank."""
    return next(o for o in next(iter(step.ranks.values())) if letter(o) and letter(o) in letters)


def training_steps(case: Case) -> tuple[Step, ...]:
    """Recorded steps in which every rank went backward."""
    return tuple(step for step in steps_of(case) if all(step.of("backward").values()))


def are_of_one_line(backwards: list[Operation]) -> bool:
    """Whether they are micro-batches: a loss of another line may be another task's."""
    return len({o.place for o in backwards}) == 1


def uses_the_last(operations: Operations) -> bool:
    """Whether the optimizer's gradients are those after the last backward, or these times one number, as clipping does."""
    factors = scaled(operations)
    return bool(factors) and max(factors) - min(factors) <= NEAR * max(factors)


def optimizers_of(steps: tuple[Step, ...]) -> set[int | None]:
    """The numbers of those that step."""
    return {o.optimizer for step in steps for found in step.of("step").values() for o in found}


def backwards_of(step: Step, rank: int) -> list[Operation]:
    """The rank's backwards in their order."""
    return of_kind(step.ranks[rank], "backward")
