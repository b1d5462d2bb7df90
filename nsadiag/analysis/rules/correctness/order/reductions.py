"""Gradients that are reduced by other operations on some ranks, once more than others, or to a sum of means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Operations,
    Step,
    of_kind,
    reduces_gradients,
    steps_of,
    values_of,
)
from nsadiag.analysis.relations.invariants.tensors import equal
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import by_rank

CLOSE = 1e-4  # of the magnitudes: rounding
NEAR = 0.05  # of the factor: a hook may round or compress what it sends
CLEAR = 0.1  # of a gradient's magnitudes: a sum that rounding does not change much


def _parameter(call: Operation) -> str | None:
    return next((role.partition(" ")[2] for role in call.roles if role.startswith("gradient ")), None)


def _in_nearly_all(times: int, steps: tuple[Step, ...]) -> bool:
    return times >= max(LEAST, len(steps) - 1)


def _of_parameter(case: Case, call: Operation, **words: object) -> Violation:
    """A reduction that should not be."""
    name = _parameter(call)
    where = Where(step=steps_of(case)[0].number, parameter=name, phase="backward")
    return Violation(at=call.place, where=where, words={"name": name, "world": case.cell.world_size, **words})


def _differing(case: Case) -> Violation | str | None:
    """Different operations in one call: the nth reduction of a group in a step."""
    for step in steps_of(case):
        reductions = step.side_by_side(lambda o: bool(o.reduces))
        if any(len({(o.name, o.group, o.shape) for o in calls.values()}) > 1 for calls in reductions):
            continue
        for calls in reductions:
            asked = {rank: call.reduces for rank, call in calls.items()}
            if len(set(asked.values())) > 1:
                odd = outlier_ranks(asked, case.cell.weight)
                call = calls[odd[0]]
                return Violation(
                    at=call.place,
                    where=Where(step=step.number, parameter=_parameter(call)),
                    words={
                        "call": call.name,
                        "of": " ".join(call.roles) or "a tensor",
                        "step": step.number,
                        "shown": by_rank(asked),
                    },
                    ranks=odd,
                    shown_by=odd[0],
                )
    return "all ranks request the same reductions"


def _summed_twice(case: Case) -> Violation | str | None:
    """A second sum over the ranks, for some parameters only: their gradients are too large by a factor."""
    steps = steps_of(case)
    again = [each for step in steps for each in _again(step)]
    times = Counter(name for name, _ in again)
    name = next((name for name, n in times.items() if _in_nearly_all(n, steps)), None)
    return _of_parameter(case, dict(reversed(again))[name], steps=times[name]) if name else None


def _again(step: Step) -> Iterator[tuple[str, Operation]]:
    """Gradients that are already equal on all ranks when they are summed, while others differ at their first sum."""
    met: Counter[str] = Counter()
    once: set[str] = set()
    twice: list[tuple[str, Operation]] = []
    for calls in step.side_by_side(reduces_gradients):
        call, values = next(iter(calls.values())), values_of(calls)
        parameter = _parameter(call)
        if parameter is None or call.reduces != "SUM" or not values:
            continue
        met[parameter] += 1
        if not equal(values):
            once.add(parameter)
        elif met[parameter] > 1 and _grew(step, parameter, call.values[0], len(calls)):
            twice.append((parameter, call))
    yield from (each for each in twice if each[0] in once and len(once) > len(twice))


def _grew(step: Step, parameter: str, before: Checksum, ranks: int) -> bool:
    """Whether the optimizer used the sum rather than an average."""
    after = [v for o in step.on_first("used") for v in o.values if v.name == parameter]
    total = ranks * before.magnitude
    return bool(after and total) and abs(after[0].magnitude - total) < 1e-3 * total


def _summed_again(case: Case) -> Violation | str | None:
    """Accumulated gradients that are summed over the ranks behind each micro-batch: the sums of before go in again."""
    steps = steps_of(case)
    found = [call for step in steps if (call := _accumulated_sum(step))]
    return _of_parameter(case, found[0], steps=len(found)) if _in_nearly_all(len(found), steps) else None


def _accumulated_sum(step: Step) -> Operation | None:
    """A sum of a gradient that had been summed before a backward added to it, where the optimizer uses what comes of it."""
    by_ranks = [_sums_of_sums(operations) for operations in step.ranks.values()]
    used = {v.name: v for o in step.on_first("used")[:1] for v in o.values}
    for name, result in used.items():
        given = [found[name].values[0] for found in by_ranks if name in found]
        total, size = (sum(getattr(value, of) or 0.0 for value in given) for of in ("total", "magnitude"))
        # An average is closer to zero by the number of ranks, and may be averaged again.
        if len(given) == len(by_ranks) and abs(total) > 10 * CLOSE * size:
            is_sum = abs((result.total or 0.0) - total) < CLOSE * size
            return by_ranks[0][name] if is_sum else None
    return None


def _sums_of_sums(operations: Operations) -> dict[str, Operation]:
    """The last sum of each gradient that is summed, grows in a backward, and is summed again."""
    summed: set[str] = set()
    grown: set[str] = set()
    found: dict[str, Operation] = {}
    for operation in operations:
        name = _parameter(operation) if reduces_gradients(operation) and operation.values else None
        if operation.kind == "backward" and operation.kept:
            grown |= summed
        elif name is not None and operation.reduces == "SUM":
            summed.add(name)
            if name in grown:
                found[name] = operation
    return found


def _summed_by_hook(case: Case) -> Violation | str | None:
    steps = [step for step in steps_of(case) if all(map(_is_plain, step.ranks.values()))]
    factors = {step.number: found for step in steps if (found := _factors(step))}
    world = case.cell.world_size
    each = [factor for found in factors.values() for factor in found]
    if len(factors) < LEAST or any(abs(factor - world) > NEAR * world for factor in each):
        return "communication hooks leave the mean of the ranks' gradients" if steps else None
    hook = next(o for step in steps for o in step.on_first("bucket"))
    first = next(iter(factors))
    return Violation(
        at=hook.place,
        where=Where(step=first, phase="backward"),
        words={
            "hook": hook.name,
            "world": world,
            "steps": count(len(factors), "step"),
            "least": min(factors[first]),
            "most": max(factors[first]),
        },
    )


def _is_plain(operations: Operations) -> bool:
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


def _sums(operations: Operations, kind: str) -> dict[str, tuple[float, float]]:
    return {v.name: (v.total, v.magnitude) for o in operations if o.kind == kind for v in o.values}


RULES = rules_of(
    Expectation(
        name="differing_reductions",
        detected="Ranks ask for different reduce operations (SUM, MAX, AVG, ...) in one call",
        find=_differing,
        says="Ranks use different operations in one {call}: {shown}. Each gets another result.",
        claim="{call} of {of} at step {step}: {shown}",
        fix="Give every rank the same `op`.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="summed_twice",
        detected="(on a GPU: `--probes light,invariants`) Some gradients are summed again when they are already equal on all ranks",
        find=_summed_twice,
        says="The gradient of {name} is summed over the ranks twice in each step, and those of other parameters once: it is {world} times too large.",
        claim="at each of {steps} steps the second sum was over gradients that were already equal on all ranks",
        fix="Reduce each gradient once.",
    ),
    Expectation(
        name="summed_after_each_backward",
        detected="(on a GPU: `--probes light,invariants`) Accumulated gradients are summed over the ranks after each micro-batch",
        find=_summed_again,
        says="Accumulated gradients are summed over the ranks after each micro-batch: what was summed before is summed again, and earlier micro-batches count {world} times more with each.",
        claim="in each of {steps} steps a backward added to the sum over the ranks of the gradient of {name}, and it was summed once more",
        fix="Reduce once a step, after the last micro-batch (averages of averages would do as well: divide by the number of ranks each time).",
    ),
    keeps="order",
    explained_by=("control_mismatch",),
)

BY_HOOKS = rules_of(
    Expectation(
        name="summed_by_hook",
        detected="(on a GPU: `--probes light,invariants`) a communication hook of DDP leaves the sum of the ranks' gradients, and each rank's loss is a mean that is divided by nothing",
        find=_summed_by_hook,
        says="The communication hook {hook} leaves the sum of all ranks' gradients in place of their mean: each rank's loss is a mean, so gradients are {world} times too large.",
        claim="in {steps}: gradients after the hook are {least:.3g} to {most:.3g} times the mean of the ranks' own before it, and each loss is an undivided mean",
        fix="Divide by the number of ranks in the hook: DDP does so only where no hook is registered.",
    ),
    keeps="order",
    explained_by=("nonfinite", "broken_equalities"),
)
