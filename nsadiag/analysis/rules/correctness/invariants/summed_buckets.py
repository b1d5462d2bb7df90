"""A communication hook of DDP that sums gradients where each rank's loss is already a mean over its own samples."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Step, of_kind, steps_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where

NEAR = 0.05  # of the factor: a hook may round or compress what it sends
CLEAR = 0.1  # of a gradient's magnitudes: a sum that rounding does not change much


def summed_buckets(case: Case) -> Iterator[Draft | Declined]:
    steps = [step for step in steps_of(case) if all(map(_is_plain, step.ranks.values()))]
    factors = {step.number: found for step in steps if (found := _factors(step))}
    world = case.cell.world_size
    each = [factor for found in factors.values() for factor in found]
    if len(factors) < LEAST or any(abs(factor - world) > NEAR * world for factor in each):
        yield Declined(
            "communication hooks leave the mean of the ranks' gradients, or losses were no plain means"
            if any(step.of("bucket") for step in steps)
            else "no communication hook was seen beside losses that are means"
        )
        return
    hook = next(o for step in steps for o in step.on_first("bucket"))
    first = next(iter(factors))
    yield silent_error(
        case,
        f"The communication hook {hook.name} leaves the sum of all ranks' gradients in place of their mean: each rank's loss is a mean, so gradients are {world} times too large.",
        f"in {count(len(factors), 'step')}: gradients after the hook are {min(factors[first]):.3g} to {max(factors[first]):.3g} times the mean of the ranks' own before it, and each loss is an undivided mean",
        hook.place,
        Where(step=first, phase="backward"),
        "Divide by the number of ranks in the hook: DDP does so only where no hook is registered.",
        strength=Strength.LIKELY,
    )


def _is_plain(operations: tuple[Operation, ...]) -> bool:
    """Whether one backward, of an undivided mean, fills gradients that were cleared."""
    backwards = of_kind(operations, "backward")
    plain = all(o.averaged and not o.divisor and not o.may_keep for o in backwards)
    return len(backwards) == 1 and plain and any(o.kind == "bucket" for o in operations)


def _factors(step: Step) -> list[float]:
    """Each gradient after the hook, as a multiple of the mean of those that the ranks gave it."""
    given = [_sums(operations, "bucket") for operations in step.ranks.values()]
    made = _sums(next(iter(step.ranks.values())), "made")
    found = []
    for name in set.intersection(*map(set, given)) & made.keys():
        totals, magnitudes = zip(*(each[name] for each in given), strict=True)
        if abs(sum(totals)) > CLEAR * sum(magnitudes) > 0:
            found.append(made[name][0] * len(given) / sum(totals))
    return found


def _sums(operations: tuple[Operation, ...], kind: str) -> dict[str, tuple[float, float]]:
    return {v.name: (v.total, v.magnitude) for o in operations if o.kind == kind for v in o.values}


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) a communication hook of DDP leaves the sum of the ranks' gradients, and each rank's loss is a mean that is divided by nothing",
    fix="Divide by the number of ranks in the hook.",
    check=summed_buckets,
    explained_by=("nonfinite", "broken_equalities"),
)
