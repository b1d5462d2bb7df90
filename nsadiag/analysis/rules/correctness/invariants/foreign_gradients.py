"""Gradients that an optimizer uses with those of another one's loss, as in training by turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Operations, Step, of_kind, steps_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where


def foreign_gradients(case: Case) -> Iterator[Draft | Declined]:
    steps = tuple(step for step in steps_of(case) if all(step.of("backward").values()))
    yield from _of_another_loss(case, steps)
    yield Declined(
        f"each optimizer uses the gradients of its own backwards, in {count(len(steps), 'step')}"
        if steps
        else "no training step was recorded on all ranks"
    )


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """A backward, with the forwards since the one before it and the optimizers that step after it."""

    backward: Operation
    forwards: frozenset[tuple[str, int]]  # modules by class and number: two may be of one class
    steps: tuple[int, ...]


def _parts(operations: Operations) -> list[_Pass]:
    backwards = [n for n, o in enumerate(operations) if o.kind == "backward"]
    found = []
    for before, at, after in zip([0, *backwards], backwards, [*backwards[1:], None], strict=False):
        stepped = tuple(o.optimizer or 0 for o in operations[at:after] if o.kind == "step")
        ran = frozenset((o.name, o.module) for o in operations[before:at] if o.kind == "forward")
        found.append(_Pass(backward=operations[at], forwards=ran, steps=stepped))
    return found


@dataclass(frozen=True, kw_only=True)
class _Left:
    """A backward that adds to what another one left for its optimizer, and the line of that one."""

    optimizer: int
    other: int
    at: str
    left_at: str


def _of_another_loss(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """In training by turns, what the other network's loss leaves in this one is still there for its own backward."""
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if b.number == a.number + 1]
    # At the first of these, an optimizer may not have stepped yet, and nothing is known of it.
    known = next(
        (n for n, (a, b) in enumerate(pairs[:2]) if any(_left(a.ranks[r], b.ranks[r]) for r in b.ranks)), 0
    )
    pairs = pairs[known:]
    found = [_left(a.ranks[rank], b.ranks[rank]) for a, b in pairs for rank in b.ranks]
    for left in found[0] if len(pairs) >= LEAST else ():
        if not all(left in each for each in found):
            continue
        yield silent_error(
            case,
            f"Optimizer {left.optimizer} uses gradients of another network's loss: the backward for optimizer {left.other} leaves its own in the parameters, and they are not cleared before the next backward adds to them.",
            f"in {count(len(pairs), 'step')}, on every rank: backward at {left.left_at}, step of optimizer {left.other}, backward at {left.at} beside gradients of before, step of optimizer {left.optimizer}; this one reaches no parameter of optimizer {left.other}, though the same modules ran",
            left.at,
            Where(step=pairs[0][1].number, phase="backward"),
            "Call zero_grad() of each optimizer directly before the backward of its own loss.",
            strength=Strength.LIKELY,
        )


def _left(before: Operations, operations: Operations) -> list[_Left]:
    """Those of a step, of which the first backward may have been in the step before."""
    parts = _parts((*before, *operations))
    first = len(of_kind(before, "backward"))
    found = []
    for number, (one, two) in enumerate(itertools.pairwise(parts), 1):
        own, others = set(two.steps), set(one.steps)
        if number < first or len(own) != 1 or len(others) != 1 or own == others:
            continue
        (mine,), (other,) = own, others
        if _leaves(one, two, mine, other):
            found.append(
                _Left(optimizer=mine, other=other, at=two.backward.place, left_at=one.backward.place)
            )
    return found


def _leaves(one: _Pass, two: _Pass, mine: int, other: int) -> bool:
    """Whether the second backward adds to gradients that the first one made in passing.

    A loss that is meant for both networks would be added to both: here the second is kept from the other one's
    parameters, though all modules of the first ran for it with gradients turned on.
    """
    then, now = one.backward, two.backward
    added = now.added or ()
    apart = other in now.kept and other not in added and len(two.forwards) > 1
    anew = mine not in then.kept and mine not in then.unread
    return (
        anew and mine in now.kept and mine in added and apart
        and one.forwards <= two.forwards and then.place != now.place
    )  # fmt: skip


RULE = Rule(
    family="correctness",
    detected="In every recorded step an optimizer uses, beside the gradients of its own loss, those that the loss of another optimizer left in its parameters, as in adversarial training",
    fix="Clear an optimizer's gradients once, directly before the first backward of its own step.",
    check=foreign_gradients,
    explained_by=("gradient_order", "reduce_operations"),
)
