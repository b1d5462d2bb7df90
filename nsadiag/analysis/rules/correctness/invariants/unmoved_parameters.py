"""Training without effect: a learning rate of zero, parameters without a gradient, or one whose updates are lost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import Step, noted, rates_of, steps_of
from nsadiag.analysis.relations.invariants.tensors import copies_of, is_constant, looks_of
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed, shortened
from nsadiag.source.patterns.single_call import only_call, scheduler_step

LEAST = 4  # recorded optimizer steps
SUDDEN = 0.1  # of the largest loss so far: the least loss before it vanishes
TAIL = 0.25  # of a job's steps, and LEAST: with a rate of zero until the end
MANY = 10  # recorded steps after which an update that was only delayed would have shown
MOST_PUT_BACK = 5  # recorded steps in which chance, or a schedule, may leave a parameter as it was
ROUNDING = 2.0**-7
Steps = list[tuple[int, Operation]]  # of one optimizer, with their numbers
Pairs = list[tuple[Checksum, Checksum]]  # a parameter and the gradient that it was updated by, step by step


def _is_idle(found: Steps) -> bool:
    rates = [rates_of(o) for _, o in found]
    return all(each and not any(each) for each in rates)


def _stepped(rank: RankEvidence) -> dict[int, Steps]:
    """By optimizer."""
    found: dict[int, Steps] = defaultdict(list)
    for step, operation in noted(rank, "step"):
        if operation.optimizer is not None:
            found[operation.optimizer].append((step, operation))
    return found


def _later(found: Steps) -> Steps:
    """A schedule may start at zero."""
    return [each for each in found if each[0] > 0]


def zero_rate(case: Case) -> Iterator[Draft]:
    for rank in case.cell.ranks:
        later = list(map(_later, _stepped(rank).values()))
        # One of several optimizers may be used later.
        if not later or not all(len(found) >= LEAST and _is_idle(found) for found in later):
            continue
        found = later[0]
        step, first = found[0]
        yield _zero(case, rank, step, first, found)


def _zero(case: Case, rank: RankEvidence, step: int, first: Operation, found: Steps) -> Draft:
    return silent_error(
        case,
        f"The learning rate of {first.name} is 0 in every step from {step} on: nothing is trained.",
        f"lr=0 of all groups before steps {listed(number for number, _ in found)}",
        scheduler_step(case.cell.code) or first.place,
        Where(step=step, phase="optimizer"),
        shown_by=rank.rank,
    )


def without_gradients(case: Case) -> Iterator[Draft]:
    """An optimizer that never finds a gradient, from its first step on."""
    for rank in case.cell.ranks:
        for number, found in _stepped(rank).items():
            if len(_later(found)) >= LEAST:
                yield from _ungraded(case, rank, number, found)


def _ungraded(case: Case, rank: RankEvidence, number: int, found: Steps) -> Iterator[Draft]:
    if any(o.graded is None or o.graded or not o.held for _, o in found) or _moves(rank, found):
        return
    # Gradients of a closure are checked after the step.
    rows = [row for row in rank.ungraded if row.optimizer == number]
    if not rows or rows[-1].count < rows[-1].of:
        return
    step, first = found[0]
    yield silent_error(
        case,
        f"{first.name} has made all its steps without a gradient for any of its {first.held} parameters: it trains nothing.",
        f"gradients of optimizer {number}, of {first.held} parameters, before steps {listed(n for n, _ in found)}: none",
        first.place,
        Where(step=step, phase="optimizer"),
        shown_by=rank.rank,
    )


def _moves(rank: RankEvidence, found: Steps) -> bool:
    """Whether parameters change nonetheless: an optimizer of the user's may keep its gradients elsewhere."""
    alone = len({o.optimizer for _, o in noted(rank, "step")}) == 1
    # What is written past autograd (`p.data`) has no new version; sums are those of the first optimizer.
    sums = {row.parameters for row in rank.replicas if row.parameters} if alone else set()
    values = {tuple(v.exact for v in o.values) for _, o in found}
    return any(o.writes for _, o in found) or len(sums) > 1 or len(values) > 1


def never_moves(case: Case) -> Iterator[Draft]:
    """Parameters with a gradient and a rate in every step that are at each step what they were at the first."""
    for rank in case.cell.ranks:
        for number, found in _stepped(rank).items():
            if len(_later(found)) >= LEAST:
                yield from _still(case, rank, number)


def _still(case: Case, rank: RankEvidence, number: int) -> Iterator[Draft]:
    steps, seen = _updates(rank, number)
    whole = {key: pairs for key, pairs in seen.items() if len(pairs) == len(steps) > MOST_PUT_BACK}
    rates = [rate for step in steps for rate in rates_of(step)]
    if not rates or min(rates) <= 0 or not whole:
        return
    still = {key: pairs for key, pairs in whole.items() if _stays(pairs)}
    # While the rate still rises, updates may yet come to be large enough.
    if 2 * len(still) > len(whole) and len(steps) >= MANY and rates_of(steps[-1]) <= rates_of(steps[0]):
        yield _rounded_off(case, rank, [name for name, _ in still], steps)
    lost = (
        key
        for key, pairs in still.items()
        if _should_move(pairs, min(rates), steps[0].name) and not _is_at_bound(rank, key[0], pairs)
    )
    if len(still) < len(whole) and (key := next(lost, None)):
        yield _put_back(case, rank, key[0], still[key], steps)


def _updates(rank: RankEvidence, number: int) -> tuple[list[Operation], dict[tuple[str, int], Pairs]]:
    """The optimizer's steps whose tensors were read, and by parameter what these found."""
    steps: list[Operation] = []
    seen: dict[tuple[str, int], Pairs] = defaultdict(list)
    for row in rank.observed:
        own = {o.kind: o for o in row.operations[::-1] if o.optimizer == number and o.values}
        if "step" in own and "used" in own:
            steps.append(own["step"])
            gradients = _numbered(own["used"])
            for key, value in _numbered(own["step"]).items():
                if key in gradients:
                    seen[key].append((value, gradients[key]))
    return steps, seen


def _numbered(operation: Operation) -> dict[tuple[str, int], Checksum]:
    """By name, and place among those of the name."""
    met: Counter[str] = Counter()
    found = {}
    for value in operation.values:
        found[value.name, met[value.name]] = value
        met[value.name] += 1
    return found


def _stays(pairs: Pairs) -> bool:
    return len({value.exact for value, _ in pairs}) == 1 and all(used.magnitude for _, used in pairs)


def _should_move(pairs: Pairs, rate: float, optimizer: str) -> bool:
    """Whether an update is more than what rounding to eight bits may lose."""
    value, _ = pairs[0]
    size = max(math.prod(value.shape), 1)
    update = rate * (min(u.magnitude for _, u in pairs) / size if optimizer == "SGD" else 1.0)
    return update > value.magnitude / size * ROUNDING


def _is_at_bound(rank: RankEvidence, name: str, pairs: Pairs) -> bool:
    """Whether it may be projected: a single value, or one for all elements, that each gradient pushes on to the same side."""
    value = pairs[0][0]
    signs = {used.total / used.magnitude for _, used in pairs}
    one = math.prod(value.shape) == 1 or is_constant(value)
    return one and signs in ({1.0}, {-1.0}) and not _writes(rank, name)


def _writes(rank: RankEvidence, name: str) -> list[Operation]:
    return [o for _, o in noted(rank, "collective") if f"parameter {name}" in o.roles]


def _rounded_off(case: Case, rank: RankEvidence, still: list[str], steps: list[Operation]) -> Draft:
    first = steps[0]
    return silent_error(
        case,
        f"{shortened(still, 1)} have gradients and a learning rate of {max(rates_of(first)):g} in each of {len(steps)} recorded steps, and never change in a single bit: each update of {first.name} is smaller than the rounding of the values.",
        f"checksums of {len(still)} parameters before each of {len(steps)} recorded steps: the same, beside gradients that are not zero",
        only_call(case.cell.code, first.name) or first.place,
        Where(parameter=still[0], step=0, phase="optimizer"),
        "Keep the parameters that the optimizer updates in float32 (and a copy in bfloat16 for the forward), or round stochastically.",
        strength=Strength.LIKELY,
        shown_by=rank.rank,
    )


def _put_back(case: Case, rank: RankEvidence, name: str, pairs: Pairs, steps: list[Operation]) -> Draft:
    first = steps[0]
    written = next((o for o in _writes(rank, name) if not o.inside), None)
    by = f", and {written.name} writes into it between them" if written else ""
    return silent_error(
        case,
        f"{name} has a gradient in each of {len(steps)} recorded steps on rank {rank.rank} and never changes, beside parameters of the same {first.name} that do{by}: what the optimizer makes of it is lost.",
        f"checksum of {name} before each of {len(steps)} recorded steps: the same; sum of its gradient's magnitudes: {pairs[0][1].magnitude:.4g} at first",
        (written or first).place,
        Where(parameter=name, step=0, phase="optimizer"),
        strength=Strength.LIKELY,
        shown_by=rank.rank,
    )


def schedule_over(case: Case) -> Iterator[Draft]:
    """A schedule that reaches zero long before the job ends: what is computed from there on trains nothing."""
    for rank in case.cell.ranks[:1]:
        rows = [row for row in rank.replicas if row.rates]
        stepped = [o for _, o in noted(rank, "step")]
        zero = next((n for n, row in enumerate(rows) if not any(any(later.rates) for later in rows[n:])), 0)
        if not zero or len({o.optimizer for o in stepped}) > 1 or len({row.subject for row in rows}) > 1:
            return
        before, first, last = rows[zero - 1], rows[zero], rows[-1]
        if last.step - first.step < max(LEAST, TAIL * last.step):
            return
        yield silent_error(
            case,
            f"The learning rate is 0 from step {first.step} at the latest until the end at step {last.step}: the schedule is over long before the job, and these steps train nothing.",
            {
                f"learning rates: {max(before.rates):g} after step {before.step}, 0 after steps {listed(row.step for row in rows[zero:])}": f"{rank.source}/replicas.jsonl"
            },
            scheduler_step(case.cell.code) or (stepped[0].place if stepped else None),
            Where(step=first.step, phase="optimizer"),
        )


def vanished_loss(case: Case) -> Iterator[Draft]:
    """A loss that drops to exactly zero from one step to the next, with all gradients, and stays there."""
    looks, steps = looks_of(case), steps_of(case)
    losses = {step.number: _loss(step) for step in steps if step.number in looks}
    gone = next((n for n, loss in enumerate(losses.values()) if loss == 0.0), 0)
    before, after = list(losses.values())[:gone], list(losses.values())[gone:]
    if len(before) < LEAST or len(after) < LEAST or any(after):
        return
    # A loss that converges to zero gets close to zero first.
    known = [loss for loss in before if loss is not None]
    if None in losses.values() or min(known) < SUDDEN * max(known):
        return
    step = list(losses)[gone]
    used = [each for copies in copies_of(case, "used").values() for each in copies.at if each[0] >= step]
    if not used or any(value.magnitude for _, values in used for value in values.values()):
        return
    around = list(losses.items())[max(gone - 3, 0) : gone + 3]
    yield silent_error(
        case,
        f"The loss is exactly 0 from step {step} on, and so is every gradient: nothing is trained any more, though the loss was {known[-1]:.4g} one step before.",
        f"losses: {', '.join(f'{number}: {loss:.4g}' for number, loss in around)}; gradients of these steps are zeros",
        next(o.place for o in steps[0].on_first("backward") if o.place),
        Where(step=step, phase="backward"),
        strength=Strength.LIKELY,
    )


def _loss(step: Step) -> float | None:
    """The loss over all ranks, if each has its own."""
    found = [o.value for ops in step.of("backward").values() for o in ops]
    known = [value for value in found if value is not None]
    return max(known, key=abs) if known and len(known) == len(found) else None


def _kept(case: Case) -> Iterator[Declined]:
    yield from in_recorded_steps(case, "every optimizer has a learning rate and parameters with gradients")


RULES = each_of(
    "correctness",
    {
        zero_rate: (
            "Optimizers have a learning rate of zero in all steps but the first",
            "Look at what the scheduler multiplies the learning rate by, and when it is stepped.",
        ),
        without_gradients: (
            "None of an optimizer's parameters has a gradient in any step",
            "Pass it the parameters of the model that runs, after it was wrapped, sharded or copied; and look for a detach() between them and the loss.",
        ),
        never_moves: (
            "(on a GPU: `--probes light,invariants`) A parameter has a gradient in every step and never changes, or most never do since their updates are rounded off",
            "Look at what is written into the parameter after optimizer.step(): a broadcast from another rank than the one that updates it, a copy from before, a clamp.",
        ),
        schedule_over: (
            "The learning rate is zero in the last quarter of the steps: the schedule is over long before the job",
            "Count what the schedule is stepped by: a wrapper may step it once a process, or once a micro-batch.",
        ),
        vanished_loss: (
            "(on a GPU: `--probes light,invariants`) The loss drops to exactly zero from one step to the next, with all gradients",
            "Check what the loss is multiplied by or averaged over: a mask, a weight or a selection that has become empty.",
        ),
    },
    when=lambda case: ran_well(case.cell),
    kept=_kept,
    keeps="order",
    explained_by=("nonfinite", "stale_optimizer"),
)
