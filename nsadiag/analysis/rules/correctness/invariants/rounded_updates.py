"""Weights in 16 bits of which an optimizer moves hardly any element: each update is lost in the rounding of the value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import noted, rates_of, source
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import only_call

LEAST = 10  # recorded steps after which an update that was only delayed would have shown
MOST = 0.8  # of the elements that have a gradient
LEAST_GRADED = 0.4  # of all elements


def rounded_updates(case: Case) -> Iterator[Draft | Declined]:
    if not ran_well(case.cell):
        return
    seen: dict[int, int] = {}
    for rank in case.cell.ranks:
        looks: dict[int, list[Operation]] = defaultdict(list)
        steps: dict[int, list[Operation]] = defaultdict(list)
        for _, operation in noted(rank, "rounding", "step"):
            (looks if operation.kind == "rounding" else steps)[operation.optimizer or 0].append(operation)
        if looks:
            seen[rank.rank] = sum(map(len, looks.values()))
        for number, found in looks.items():
            if _are_lost(found, steps[number]):
                yield _lost(case, rank.rank, found[-1], steps[number])
    if seen:
        yield Declined(
            f"in {count(sum(seen.values()), 'sample')} of weights that {named(case.cell, seen)} kept in 16 bits, most elements are moved by their updates",
            source(case, min(seen)),
        )


def _are_lost(looks: list[Operation], steps: list[Operation]) -> bool:
    """Whether most elements have had a gradient and their value at each look, while the rate did not rise."""
    last = looks[-1]
    if len(looks) < LEAST or last.graded is None or not steps or _rate(steps[-1]) > _rate(steps[0]):
        return False
    return (
        min(map(_rate, steps)) > 0 and last.held > LEAST_GRADED * last.of and last.graded > MOST * last.held
    )


def _rate(operation: Operation) -> float:
    return max(rates_of(operation), default=0.0)


def _lost(case: Case, rank: int, last: Operation, steps: list[Operation]) -> Draft:
    first, still = steps[0], last.graded or 0
    return silent_error(
        case,
        f"{still / last.held:.0%} of the weights that {first.name} updates have a gradient in each recorded step and never change: they are kept in 16 bits, and updates with a learning rate of {_rate(first):g} are smaller than the rounding of the values.",
        f"of {last.of} elements that were sampled, {last.held} had a gradient at each of {len(steps)} recorded steps, and {still} of these kept their value",
        only_call(case.cell.code, first.name) or first.place,
        Where(step=0, phase="optimizer"),
        strength=Strength.LIKELY,
        shown_by=rank,
    )


RULE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) weights that are kept in 16 bits have gradients in each recorded step, and most of their elements never change, since an optimizer of torch rounds its updates off",
    fix="Keep the parameters that the optimizer updates in float32 (and a copy in bfloat16 for the forward), or round stochastically.",
    check=rounded_updates,
    keeps="order",
    explained_by=("nonfinite", "vanished_loss"),
)
