"""Gradient reductions with another operation on some ranks, or of some parameters more often than of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Step,
    reduces_gradients,
    steps_of,
    values_of,
)
from nsadiag.analysis.relations.invariants.tensors import equal
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import by_rank

CLOSE = 1e-4  # of the magnitudes: rounding


def reduce_operations(case: Case) -> Iterator[Draft | Declined]:
    steps = steps_of(case)
    yield from _other_operations(case, steps)
    yield from _summed_twice(case, steps)
    yield from _summed_again(case, steps)
    yield Declined(
        f"all ranks request the same reductions, in {count(len(steps), 'step')}"
        if steps
        else "no step was recorded on all ranks"
    )


def _other_operations(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Different operations in one call: the nth reduction of a group in a step."""
    for step in steps:
        reductions = step.side_by_side(lambda o: bool(o.reduces))
        if any(len({(o.name, o.group, o.shape) for o in calls.values()}) > 1 for calls in reductions):
            continue
        for calls in reductions:
            asked = {rank: call.reduces for rank, call in calls.items()}
            if len(set(asked.values())) > 1:
                odd = outlier_ranks(asked, case.cell.weight)
                call, shown = calls[odd[0]], by_rank(asked)
                yield silent_error(
                    case,
                    f"Ranks use different operations in one {call.name}: {shown}. Each gets another result.",
                    f"{call.name} of {' '.join(call.roles) or 'a tensor'} at step {step.number}: {shown}",
                    call.place,
                    Where(step=step.number, parameter=_parameter(call)),
                    ranks=odd,
                    shown_by=odd[0],
                )
                return


def _parameter(call: Operation) -> str | None:
    return next((role.partition(" ")[2] for role in call.roles if role.startswith("gradient ")), None)


def _summed_twice(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """A second sum over the ranks, for some parameters only: their gradients are too large by a factor."""
    again = [each for step in steps for each in _again(step)]
    times = Counter(name for name, _ in again)
    name = next((name for name, count in times.items() if count >= max(LEAST, len(steps) - 1)), None)
    if name is None:
        return
    yield silent_error(
        case,
        f"The gradient of {name} is summed over the ranks twice in each step, and those of other parameters once: it is {case.cell.world_size} times too large.",
        f"at each of {times[name]} steps the second sum was over gradients that were already equal on all ranks",
        dict(reversed(again))[name].place,
        Where(step=steps[0].number, parameter=name, phase="backward"),
        "Reduce each gradient once.",
        strength=Strength.LIKELY,
    )


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


def _summed_again(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Accumulated gradients that are summed over the ranks behind each micro-batch: the sums of before go in again."""
    found = [call for step in steps if (call := _accumulated_sum(step))]
    if len(found) < max(LEAST, len(steps) - 1):
        return
    name = _parameter(found[0])
    yield silent_error(
        case,
        f"Accumulated gradients are summed over the ranks after each micro-batch: what was summed before is summed again, and earlier micro-batches count {case.cell.world_size} times more with each.",
        f"in each of {len(found)} steps a backward added to the sum over the ranks of the gradient of {name}, and it was summed once more",
        found[0].place,
        Where(step=steps[0].number, parameter=name, phase="backward"),
        "Reduce once a step, after the last micro-batch (averages of averages would do as well: divide by the number of ranks each time).",
        strength=Strength.LIKELY,
    )


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


def _sums_of_sums(operations: tuple[Operation, ...]) -> dict[str, Operation]:
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


RULE = Rule(
    family="correctness",
    detected="Ranks ask for different reduce operations (SUM, MAX, AVG, ...) in one call; or (`--probes light,invariants`) some gradients are summed again when they are already equal on all ranks, or accumulated ones after each micro-batch",
    fix="Give every rank the same `op`.",
    check=reduce_operations,
    needs=("black_boxes",),
    explained_by=("control_mismatch",),
)
