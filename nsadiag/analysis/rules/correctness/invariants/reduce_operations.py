"""Gradient reductions with another operation on some ranks, or of some parameters more often than of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Step, reduces_gradients, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import equal
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Strength, Where

CLOSE = 1e-4  # of the magnitudes: rounding


def reduce_operations(case: Case) -> Iterator[Draft | Declined]:
    steps = steps_of(case)
    yield from _other_operations(case, steps)
    yield from _summed_twice(case, steps)
    yield from _summed_again(case, steps)
    yield Declined(f"all ranks request the same reductions, in {len(steps)} steps")


def _other_operations(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Different operations in one call: the nth reduction of a group in a step."""
    for step in steps:
        each = {rank: [o for o in found if o.reduces] for rank, found in step.of("collective").items()}
        if len({tuple((o.name, o.group, o.shape) for o in found) for found in each.values()}) > 1:
            continue
        for calls in zip(*each.values(), strict=True):
            asked = {rank: call.reduces for rank, call in zip(each, calls, strict=True)}
            if len(set(asked.values())) > 1:
                odd = outlier_ranks(asked, case.cell.weight)
                call = calls[list(each).index(odd[0])]
                shown = ", ".join(f"rank {rank}: {what}" for rank, what in list(asked.items())[:8])
                yield Draft(
                    strength=Strength.STRONG,
                    summary=f"Ranks use different operations in one {call.name}: {shown}. Each gets another result.",
                    guilty_ranks=odd,
                    where=Where(step=step.number, parameter=_parameter(call)).at(
                        locations.of_text(call.place)
                    ),
                    evidence={
                        f"{call.name} of {' '.join(call.roles) or 'a tensor'} at step {step.number}: {shown}": source(
                            case, odd[0]
                        )
                    },
                )
                return


def _parameter(call: Operation) -> str | None:
    return next((role.partition(" ")[2] for role in call.roles if role.startswith("gradient ")), None)


def _summed_twice(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """A second sum over the ranks, for some parameters only: their gradients are too large by a factor."""
    found: Counter[str] = Counter()
    last: dict[str, Operation] = {}
    for step in steps:
        for parameter, call in _again(step):
            found[parameter] += 1
            last.setdefault(parameter, call)
    often = [name for name, times in found.items() if times >= max(LEAST, len(steps) - 1)]
    if not often:
        return
    name = often[0]
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"The gradient of {name} is summed over the ranks twice in each step, and those of other parameters once: it is {case.cell.world_size} times too large.",
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(step=steps[0].number, parameter=name, phase="backward").at(
            locations.of_text(last[name].place)
        ),
        evidence={
            f"at each of {found[name]} steps the second sum was over gradients that were already equal on all ranks": source(
                case
            )
        },
        fix="Reduce each gradient once.",
    )


def _summed_again(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Accumulated gradients that are summed over the ranks behind each micro-batch: the sums of before go in again."""
    found = [call for step in steps if (call := _accumulated_sum(step))]
    if len(found) < max(LEAST, len(steps) - 1):
        return
    call, name = found[0], _parameter(found[0])
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Accumulated gradients are summed over the ranks after each micro-batch: what was summed before is summed again, and earlier micro-batches count {case.cell.world_size} times more with each.",
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(step=steps[0].number, parameter=name, phase="backward").at(locations.of_text(call.place)),
        evidence={
            f"in each of {len(found)} steps a backward added to the sum over the ranks of the gradient of {name}, and it was summed once more": source(
                case
            )
        },
        fix="Reduce once a step, after the last micro-batch (averages of averages would do as well: divide by the number of ranks each time).",
    )


def _accumulated_sum(step: Step) -> Operation | None:
    """A sum of a gradient that had been summed before a backward added to it, where the optimizer uses what comes of it."""
    by_rank = [_sums_of_sums(operations) for operations in step.ranks.values()]
    used = {v.name: v for o in next(iter(step.of("used").values()), []) for v in o.values}
    for name, result in used.items():
        if not by_rank or not all(name in found for found in by_rank):
            continue
        given = [found[name].values[0] for found in by_rank]
        total, size = (sum(getattr(value, of) or 0.0 for value in given) for of in ("total", "magnitude"))
        # An average is closer to zero by the number of ranks, and may be averaged again.
        if abs(total) > 10 * CLOSE * size:
            is_sum = abs((result.total or 0.0) - total) < CLOSE * size
            return by_rank[0][name] if is_sum else None
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


def _again(step: Step) -> Iterator[tuple[str, Operation]]:
    """Gradients that are already equal on all ranks when they are summed, while others differ at their first sum."""
    by_rank = {
        rank: [o for o in found if reduces_gradients(o)] for rank, found in step.of("collective").items()
    }
    if len({len(found) for found in by_rank.values()}) > 1:
        return
    met: Counter[str] = Counter()
    once: set[str] = set()
    twice: list[tuple[str, Operation]] = []
    for calls in zip(*by_rank.values(), strict=True):
        parameter = _parameter(calls[0])
        values: dict[int, Checksum] = {n: call.values[0] for n, call in enumerate(calls) if call.values}
        if parameter is None or calls[0].reduces != "SUM" or len(values) < len(calls):
            continue
        met[parameter] += 1
        if not equal(values):
            once.add(parameter)
        elif met[parameter] > 1 and values[0].magnitude and _grew(step, parameter, values[0], len(calls)):
            twice.append((parameter, calls[0]))
    yield from (each for each in twice if each[0] in once and len(once) > len(twice))


def _grew(step: Step, parameter: str, before: Checksum, ranks: int) -> bool:
    """Whether the optimizer used the sum rather than an average."""
    used = next(iter(step.of("used").values()), [])
    after = [v for o in used for v in o.values if v.name == parameter]
    return (
        bool(after) and abs(after[0].magnitude - ranks * before.magnitude) < 1e-3 * ranks * before.magnitude
    )


RULE = Rule(
    name="reduce_operations",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="Ranks ask for different reduce operations (SUM, MAX, AVG, ...) in one call; or (`--probes light,invariants`) some gradients are summed again when they are already equal on all ranks, or accumulated ones after each micro-batch",
    fix="Give every rank the same `op`.",
    check=reduce_operations,
    needs=("black_boxes",),
    explained_by=("control_mismatch",),
    confused_with=("healthy",),
)
