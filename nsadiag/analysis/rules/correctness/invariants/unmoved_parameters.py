"""Training without effect: a learning rate of zero, parameters without a gradient, or one whose updates are lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import Step, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import looks_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import only_call, scheduler_step

LEAST = 4  # recorded optimizer steps
SUDDEN = 0.1  # of the largest loss so far: the least loss before it vanishes
RATE = "lr="
TAIL = 0.25  # of a job's steps, and LEAST: with a rate of zero until the end
MANY = 10  # recorded steps after which an update that was only delayed would have shown
MOST_PUT_BACK = 5  # recorded steps in which chance, or a schedule, may leave a parameter as it was
ROUNDING = 2.0**-7


def unmoved_parameters(case: Case) -> Iterator[Draft | Declined]:
    if case.cell.stopped == "hang" or any(rank.exception for rank in case.cell.ranks):
        return
    for rank in case.cell.ranks:
        stepped: dict[int, list[tuple[int, Operation]]] = {}
        for row in rank.observed:
            for operation in row.operations:
                if operation.kind == "step" and operation.optimizer is not None:
                    stepped.setdefault(operation.optimizer, []).append((row.step, operation))
        # A schedule may start at zero.
        later = {n: [(step, o) for step, o in found if step > 0] for n, found in stepped.items()}
        # One of several optimizers may be used later.
        if later and all(len(found) >= LEAST and _is_idle(found) for found in later.values()):
            yield from _without_rate(case, rank, next(iter(later.values())))
        for number, found in stepped.items():
            if len(later[number]) >= LEAST:
                yield from _without_gradients(case, rank, number, found)
                yield from _put_back(case, rank, number)
    yield from _ended_early(case)
    yield from _vanished(case)
    yield Declined("every optimizer has a learning rate and parameters with gradients")


def _ended_early(case: Case) -> Iterator[Draft]:
    """A schedule that reaches zero long before the job ends: what is computed from there on trains nothing."""
    rank = next(iter(case.cell.ranks), None)
    if rank is None:
        return
    rows = [row for row in rank.replicas if row.rates]
    optimizers = {o.optimizer for row in rank.observed for o in row.operations if o.kind == "step"}
    zero = next((n for n, row in enumerate(rows) if not any(any(later.rates) for later in rows[n:])), 0)
    if not zero or len(optimizers) > 1 or {row.subject for row in rows} != {rows[0].subject}:
        return
    before, first, last = rows[zero - 1], rows[zero], rows[-1]
    without = last.step - first.step
    if without < max(LEAST, TAIL * last.step):
        return
    stepped = next((o for row in rank.observed for o in row.operations if o.kind == "step"), None)
    yield Draft(
        strength=Strength.STRONG,
        summary=f"The learning rate is 0 from step {first.step} at the latest until the end at step {last.step}: the schedule is over long before the job, and these steps train nothing.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=first.step, phase="optimizer").at(
            scheduler_step(case.cell.code) or (locations.of_text(stepped.place) if stepped else None)
        ),
        evidence={
            f"learning rates: {max(before.rates):g} after step {before.step}, 0 after steps {', '.join(str(row.step) for row in rows[zero:][:8])}": f"{rank.source}/replicas.jsonl"
        },
        fix="Count what the schedule is stepped by: a wrapper may step it once a process, or once a micro-batch.",
    )


def _rates(operation: Operation) -> list[float]:
    words = (word for text in operation.settings for word in text.split() if word.startswith(RATE))
    return [float(word.removeprefix(RATE)) for word in words]


def _is_idle(found: list[tuple[int, Operation]]) -> bool:
    rates = [_rates(o) for _, o in found]
    return all(each and not any(each) for each in rates)


def _without_rate(case: Case, rank: RankEvidence, found: list[tuple[int, Operation]]) -> Iterator[Draft]:
    step, first = found[0]
    yield Draft(
        strength=Strength.STRONG,
        summary=f"The learning rate of {first.name} is 0 in every step from {step} on: nothing is trained.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=step, phase="optimizer").at(
            scheduler_step(case.cell.code) or locations.of_text(first.place)
        ),
        evidence={
            f"lr=0 of all groups before steps {', '.join(str(s) for s, _ in found[:8])}": source(
                case, rank.rank
            )
        },
        fix="Look at what the scheduler multiplies the learning rate by, and when it is stepped.",
    )


def _without_gradients(
    case: Case, rank: RankEvidence, number: int, found: list[tuple[int, Operation]]
) -> Iterator[Draft]:
    """An optimizer that never finds a gradient, from its first step on."""
    if any(o.graded is None or o.graded for _, o in found) or not all(o.held for _, o in found):
        return
    # Gradients of a closure are checked after the step.
    rows = [row for row in rank.ungraded if row.optimizer == number]
    if not rows or rows[-1].count < rows[-1].of:
        return
    step, first = found[0]
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{first.name} has made all its steps without a gradient for any of its {first.held} parameters: it trains nothing.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=step, phase="optimizer").at(locations.of_text(first.place)),
        evidence={
            f"gradients of optimizer {number}, of {first.held} parameters, before steps {', '.join(str(s) for s, _ in found[:8])}: none": source(
                case, rank.rank
            )
        },
        fix="Pass it the parameters of the model that runs, after it was wrapped, sharded or copied; and look for a detach() between them and the loss.",
    )


def _put_back(case: Case, rank: RankEvidence, number: int) -> Iterator[Draft]:
    """A parameter with a gradient in every step, which is at each step what it was at the first, beside others that move."""
    seen: dict[tuple[str, int], list[tuple[Checksum, Checksum]]] = {}
    steps: list[Operation] = []
    for row in rank.observed:
        own = [o for o in row.operations if o.optimizer == number and o.values]
        step, used = (next((o for o in own if o.kind == kind), None) for kind in ("step", "used"))
        if step and used:
            steps.append(step)
            gradients = numbered(used)
            for key, value in numbered(step).items():
                if key in gradients:
                    seen.setdefault(key, []).append((value, gradients[key]))
    rates = [rate for step in steps for rate in _rates(step)]
    whole = {key: pairs for key, pairs in seen.items() if len(pairs) == len(steps) > MOST_PUT_BACK}
    if not rates or min(rates) <= 0 or not whole:
        return
    still = [name for (name, _), pairs in whole.items() if _stays(pairs)]
    # While the rate still rises, updates may yet come to be large enough.
    if 2 * len(still) > len(whole) and len(steps) >= MANY and _rates(steps[-1]) <= _rates(steps[0]):
        yield _rounded_off(case, rank, still, steps)
    if len(still) == len(whole):
        return
    for (name, _), pairs in whole.items():
        if not _stays(pairs) or not _should_move(pairs, min(rates), steps[0].name):
            continue
        role = f"parameter {name}"
        writes = (
            o for row in rank.observed for o in row.operations if o.kind == "collective" and role in o.roles
        )
        written = next((o for o in writes if not o.inside), None)
        by = f", and {written.name} writes into it between them" if written else ""
        yield Draft(
            strength=Strength.LIKELY,
            summary=f"{name} has a gradient in each of {len(steps)} recorded steps on rank {rank.rank} and never changes, beside parameters of the same {steps[0].name} that do{by}: what the optimizer makes of it is lost.",
            guilty_ranks=tuple(r.rank for r in case.cell.ranks),
            where=Where(parameter=name, step=0, phase="optimizer").at(
                locations.of_text((written or steps[0]).place)
            ),
            evidence={
                f"checksum of {name} before each of {len(steps)} recorded steps: the same; sum of its gradient's magnitudes: {pairs[0][1].magnitude:.4g} at first": source(
                    case, rank.rank
                )
            },
            fix="Look at what is written into the parameter after optimizer.step(): a broadcast from another rank than the one that updates it, a copy from before, a clamp.",
        )
        return


def _rounded_off(case: Case, rank: RankEvidence, still: list[str], steps: list[Operation]) -> Draft:
    more = f" and {len(still) - 1} more" if len(still) > 1 else ""
    rate = max(_rates(steps[0]))
    return Draft(
        strength=Strength.LIKELY,
        summary=f"{still[0]}{more} have gradients and a learning rate of {rate:g} in each of {len(steps)} recorded steps, and never change in a single bit: each update of {steps[0].name} is smaller than the rounding of the values.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(parameter=still[0], step=0, phase="optimizer").at(
            only_call(case.cell.code, steps[0].name) or locations.of_text(steps[0].place)
        ),
        evidence={
            f"checksums of {len(still)} parameters before each of {len(steps)} recorded steps: the same, beside gradients that are not zero": source(
                case, rank.rank
            )
        },
        fix="Keep the parameters that the optimizer updates in float32 (and a copy in bfloat16 for the forward), or round stochastically.",
    )


def numbered(operation: Operation) -> dict[tuple[str, int], Checksum]:
    """By name, and place among those of the name."""
    met: Counter[str] = Counter()
    found = {}
    for value in operation.values:
        found[value.name, met[value.name]] = value
        met[value.name] += 1
    return found


def _stays(pairs: list[tuple[Checksum, Checksum]]) -> bool:
    return len({value.exact for value, _ in pairs}) == 1 and all(used.magnitude for _, used in pairs)


def _should_move(pairs: list[tuple[Checksum, Checksum]], rate: float, optimizer: str) -> bool:
    """Whether an update is more than what rounding to eight bits may lose."""
    value, _ = pairs[0]
    size = max(math.prod(value.shape), 1)
    update = rate * (min(u.magnitude for _, u in pairs) / size if optimizer == "SGD" else 1.0)
    return update > value.magnitude / size * ROUNDING


def _vanished(case: Case) -> Iterator[Draft]:
    """A loss that drops to exactly zero from one step to the next, with all gradients, and stays there."""
    looks = {look.step: look for look in looks_of(case)}
    losses = [(s.number, _loss(s)) for s in steps_of(case) if s.number in looks]
    gone = next((n for n, (_, loss) in enumerate(losses) if loss == 0.0), 0)
    before, after = losses[:gone], losses[gone:]
    if len(before) < LEAST or len(after) < LEAST or any(loss != 0.0 for _, loss in after):
        return
    # A loss that converges to zero gets close to zero first.
    known = [loss for _, loss in before if loss is not None]
    if len(known) < len(before) or min(known) < SUDDEN * max(known):
        return
    used = [v for number, _ in after for each in looks[number].used.values() for v in each.values()]
    if not used or any(v.magnitude for v in used):
        return
    step = after[0][0]
    at = next(o for o in next(iter(steps_of(case)[0].of("backward").values())) if o.place)
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"The loss is exactly 0 from step {step} on, and so is every gradient: nothing is trained any more, though the loss was {known[-1]:.4g} one step before.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=step, phase="backward").at(locations.of_text(at.place)),
        evidence={
            f"losses: {', '.join(f'{n}: {loss:.4g}' for n, loss in losses[max(gone - 3, 0) : gone + 3])}; gradients of these steps are zeros": source(
                case
            )
        },
        fix="Check what the loss is multiplied by or averaged over: a mask, a weight or a selection that has become empty.",
    )


def _loss(step: Step) -> float | None:
    """The loss over all ranks, if each has its own."""
    found = [o.value for ops in step.of("backward").values() for o in ops]
    known = [value for value in found if value is not None]
    return max(known, key=abs) if known and len(known) == len(found) else None


RULE = Rule(
    name="unmoved_parameters",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="An optimizer has a learning rate of zero in all steps but the first, or in the last quarter of them, or none of its parameters has a gradient in any step; or (`--probes light,invariants`) a parameter has a gradient in every step and never changes, or most never do since their updates are rounded off, or the loss drops to exactly zero, with all gradients",
    fix="Give the optimizer a learning rate, and the parameters that the loss depends on.",
    check=unmoved_parameters,
    explained_by=("nonfinite", "stale_optimizer"),
    confused_with=("healthy",),
)
