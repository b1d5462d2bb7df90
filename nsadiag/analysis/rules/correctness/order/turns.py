"""Networks that are trained by turns: gradients that an optimizer uses with those of another one's loss."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import LEAST, Operations, of_kind
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.analysis.rules.correctness.order.words import training_steps
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Where


class Pass(NamedTuple):
    """A backward, with the forwards since the one before it and the optimizers that step after it."""

    backward: Operation
    forwards: frozenset[tuple[str, int]]  # modules by class and number: two may be of one class
    steps: tuple[int, ...]


class Leftover(NamedTuple):
    """A backward that adds to what another one left for its optimizer, and the line of that one."""

    optimizer: int
    other: int
    at: str
    left_at: str


def _passes(operations: Operations) -> list[Pass]:
    backwards = [n for n, o in enumerate(operations) if o.kind == "backward"]
    found = []
    for before, at, after in zip([0, *backwards], backwards, [*backwards[1:], None], strict=False):
        stepped = tuple(o.optimizer or 0 for o in operations[at:after] if o.kind == "step")
        ran = frozenset((o.name, o.module) for o in operations[before:at] if o.kind == "forward")
        found.append(Pass(backward=operations[at], forwards=ran, steps=stepped))
    return found


def _foreign_gradients(case: Case) -> Violation | str | None:
    """In training by turns, what the other network's loss leaves in this one is still there for its own backward."""
    steps = training_steps(case)
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if b.number == a.number + 1]
    # At the first of these, an optimizer may not have stepped yet, and nothing is known of it.
    known = next(
        (n for n, (a, b) in enumerate(pairs[:2]) if any(_left(a.ranks[r], b.ranks[r]) for r in b.ranks)), 0
    )
    found = [_left(a.ranks[rank], b.ranks[rank]) for a, b in pairs[known:] for rank in b.ranks]
    always = (left for left in found[0] if all(left in each for each in found)) if found else iter(())
    left = next(always, None)
    if left is None or len(pairs) - known < LEAST:
        return None
    return Violation(
        at=left.at,
        where=Where(step=pairs[known][1].number, phase="backward"),
        words={**left._asdict(), "steps": count(len(pairs) - known, "step")},
    )


def _left(before: Operations, operations: Operations) -> list[Leftover]:
    """Those of a step, of which the first backward may have been in the step before."""
    parts = _passes((*before, *operations))
    first = len(of_kind(before, "backward"))
    found = []
    for number, (one, two) in enumerate(itertools.pairwise(parts), 1):
        own, others = set(two.steps), set(one.steps)
        if number < first or len(own) != 1 or len(others) != 1 or own == others:
            continue
        (mine,), (other,) = own, others
        if _leaves(one, two, mine, other):
            found.append(
                Leftover(optimizer=mine, other=other, at=two.backward.place, left_at=one.backward.place)
            )
    return found


def _leaves(one: Pass, two: Pass, mine: int, other: int) -> bool:
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


RULES = rules_of(
    Expectation(
        name="foreign_gradients",
        detected="In every recorded step an optimizer uses, beside the gradients of its own loss, those that the loss of another optimizer left in its parameters, as in adversarial training",
        find=_foreign_gradients,
        says="Optimizer {optimizer} uses gradients of another network's loss: the backward for optimizer {other} leaves its own in the parameters, and they are not cleared before the next backward adds to them.",
        claim="in {steps}, on every rank: backward at {left_at}, step of optimizer {other}, backward at {at} beside gradients of before, step of optimizer {optimizer}; this one reaches no parameter of optimizer {other}, though the same modules ran",
        fix="Call zero_grad() of each optimizer directly before the backward of its own loss.",
    ),
    keeps="order",
    explained_by=("summed_after_each_backward", "never_cleared"),
)
