"""Gradients of the earlier backwards of a step that nothing reduces, as the last one alone reduces those that it makes."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    MOST_OPERATIONS,
    one_optimizer,
    reduces_gradients,
    source,
    steps_of,
)
from nsadiag.analysis.relations.invariants.tensors import Copies, is_constant, looks_of, parameters_of, sums
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count, was
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import shortened

GRADIENT = "gradient "


def earlier_backwards(case: Case) -> Iterator[Draft | Declined]:
    """Only where gradients are accumulated, and the last backward reduces just those which it changes."""
    steps = steps_of(case)
    rows = [ops for step in steps for ops in step.ranks.values() if any(o.kind == "made" for o in ops)]
    missed = _missed(rows[0]) if len(rows) > LEAST and one_optimizer(steps) else frozenset()
    if not missed or any(_missed(ops) != missed for ops in rows) or len(looks_of(case)) <= LEAST:
        yield from in_recorded_steps(
            case, "no reduction within the last backward leaves out what earlier ones of the step made"
        )
        return
    left = [copies for copies in parameters_of(case) if copies.name in missed]
    reduced = [copies for copies in parameters_of(case) if copies.name not in missed and copies.moves()]
    drifted = [copies for copies in left if _drifts(copies)]
    if not drifted or not reduced or not all(copies.is_kept for copies in reduced):
        yield Declined(
            f"the last backward does not reduce {count(len(left), 'gradient')}, of which {len(drifted) or 'none'} drift apart",
            source(case),
        )
        return
    first = drifted[0]
    step, values = first.parted_at
    names = [copies.name for copies in left]
    yield silent_error(
        case,
        f"{shortened(names, 1)} {was(names)} left out when gradients are reduced: each step has several backwards, the last one reduces the gradients that it makes, and these come from an earlier one alone. {first.name} is equal on all ranks at first and differs from step {step} on, while all that is reduced stays equal.",
        sums(first.name, step, values),
        next(o for o in rows[0] if _is_within(o)).place,
        Where(parameter=first.name, step=max(step - 1, 0), phase="backward"),
        "Reduce every gradient that the step has made, also those that the last backward does not reach. If separate copies are intended, ignore this.",
        strength=Strength.WEAK,
    )


def _missed(operations: tuple[Operation, ...]) -> frozenset[str]:
    """Parameters with a gradient that the last backward did not change and that nothing reduced; none unless all others were changed and reduced in it."""
    last = max((n for n, o in enumerate(operations) if o.kind == "backward"), default=0)
    made = [(n, {v.name: v for v in o.values}) for n, o in enumerate(operations) if o.kind == "made"]
    if len(made) < 2 or not made[-2][0] < last < made[-1][0] or len(operations) >= MOST_OPERATIONS:
        return frozenset()
    before, after = made[-2][1], made[-1][1]
    reduced = [
        (n, role.removeprefix(GRADIENT))
        for n, o in enumerate(operations)
        if _is_within(o)
        for role in o.roles
    ]
    others = any(n < last for n, _ in reduced) or any(map(reduces_gradients, operations))
    untouched = {
        name for name, value in after.items() if name in before and before[name].exact == value.exact
    }
    changed = after.keys() - untouched
    names = {name for _, name in reduced}
    # Only where gradients are accumulated: then also those of earlier backwards are to be reduced.
    whole = changed <= names and untouched.isdisjoint(names) and not changed.isdisjoint(before)
    return frozenset(untouched) if whole and not others else frozenset()


def _is_within(operation: Operation) -> bool:
    """Whether it reduces gradients within a backward, as a hook does."""
    carries = any(role.startswith(GRADIENT) for role in operation.roles)
    return (
        operation.kind == "collective"
        and bool(operation.reduces)
        and operation.inside == "backward"
        and carries
    )


def _drifts(copies: Copies) -> bool:
    return copies.has_parted and copies.held > 0 and not is_constant(copies.first)


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) Of accumulated gradients, those that the last backward of a step does not reach are never reduced, and their parameters drift apart",
    fix="Reduce every gradient before the optimizer uses it, also those that the last backward does not reach.",
    check=earlier_backwards,
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)
