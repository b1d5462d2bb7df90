"""Parameters that were equal on all ranks for some steps and then differ, or that became equal although each rank had its own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    SMALL,
    Step,
    reduces_gradients,
    source,
    steps_of,
)
from nsadiag.analysis.relations.invariants.tensors import (
    Copies,
    Values,
    copies_of,
    equal,
    is_constant,
    looks_of,
    parameters_of,
    sums,
)
from nsadiag.analysis.rules.correctness.replicas.drift_causes import OF_LOADS, DriftCause, cause_in_step
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count, was
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import by_rank, shortened
from nsadiag.source.patterns.rank_conditions import write_on_one_rank

ALIKE = "Change parameters on all ranks in the same way, or broadcast them after a change on one rank."


def broken_equalities(case: Case) -> Iterator[Draft | Declined]:
    looks = len(looks_of(case))
    if looks <= LEAST:
        yield Declined(
            f"tensors were recorded on all ranks in {count(looks, 'step')} (`--probes light,invariants` records them)"
        )
        return
    yield from _diverged(case)
    yield from _became_copies(case)
    yield Declined(f"all parameters that were equal on all ranks stayed equal, in {looks} steps")


def _diverged(case: Case) -> Iterator[Draft]:
    found = [copies for copies in parameters_of(case) if _is_broken(copies)]
    # A single bit of a large tensor is among the elements that are read in every step by chance alone.
    known = {copies.key[:2] for copies in found}
    wholes = copies_of(case, "whole").values()
    found += [copies for copies in wholes if copies.key[:2] not in known and _is_broken(copies)]
    if not found:
        return
    first = min(found, key=lambda copies: copies.parted_at[0])
    (until, _), (since, values) = first.at[first.held - 1 : first.held + 1]
    if _stopped_reducing(case, since):
        return
    together = [copies.name for copies in found if copies.parted_at[0] == since]
    why = _cause(case, first)
    seen = (
        _sums(first.name, since, values),
        f"until step {until} its copies changed in every step and were equal to the last bit",
    )
    yield silent_error(
        case,
        f"{shortened(together, 1)} {was(together)} equal on all ranks until step {until}, but not from step {since} on: {why.says}.",
        {**dict.fromkeys(seen, source(case)), **why.more},
        why.place,
        Where(parameter=first.name, step=until, phase="optimizer"),
        why.fix,
        ranks=why.odd or _outliers(case, values),
    )


def _is_broken(copies: Copies) -> bool:
    """Whether they are equal for some steps, while they change, and then differ for good."""
    return copies.held >= LEAST and copies.has_parted and copies.moves(copies.held) >= LEAST - 1


def _sums(name: str, step: int, values: Values) -> str:
    if all(value.shape for value in values.values()):
        return sums(name, step, values)
    exact = {rank: value.exact % (1 << 64) for rank, value in values.items()}
    return f"checksum over every bit of {name} before step {step}: {by_rank(exact, '016x')}"


def _outliers(case: Case, values: Values) -> tuple[int, ...]:
    return outlier_ranks({rank: value.exact for rank, value in values.items()}, case.cell.weight)


def _stopped_reducing(case: Case, since: int) -> bool:
    """Whether the user's code stopped reducing gradients on all ranks: a phase in which ranks train independently."""
    reducing = [
        step.number
        for step in steps_of(case)
        for ops in step.ranks.values()
        if any(map(reduces_gradients, ops))
    ]
    return bool(reducing) and max(reducing) < since


def _cause(case: Case, found: Copies) -> DriftCause:
    """The cause of the broken equality, and its ranks."""
    until, since = (step for step, _ in found.at[found.held - 1 : found.held + 1])
    steps = {step.number: step for step in steps_of(case)}
    return (
        _loaded_by_some(case, steps[since])
        or cause_in_step(case, since)
        or _by_its_gradient(case, found, steps[until])
    )


def _loaded_by_some(case: Case, step: Step) -> DriftCause | None:
    loads = step.of("load")
    most = max(map(len, loads.values()))
    by = tuple(rank for rank, ops in loads.items() if ops and len(ops) == most)
    if not 0 < len(by) < len(loads):
        return None
    says, place = f"only rank {case.cell.names(by)} loads a state", locations.of_text(loads[by[0]][0].place)
    return DriftCause(says=says, place=place, odd=by, fix=OF_LOADS)


def _by_its_gradient(case: Case, found: Copies, before: Step) -> DriftCause:
    """The reason, by the gradient that the optimizer used in the step before, at the operation that made it."""
    stepped = before.on_first("step")[0]
    graded = copies_of(case, "used").get(found.key)
    used = dict(graded.at).get(before.number) if graded else None
    made_by = stepped
    if used is None:
        says = "no operation of the recorded ones explains it, as of a bit that flipped in memory"
    elif equal(used):
        says = "its gradients were equal, and something else changed it, or the optimizer's state, on some ranks only"
    else:
        says = "its gradients, as the optimizer used them, differ between the ranks"
        odd = _outliers(case, used)
        if len(odd) < len(used) / 2:
            says = f"its gradient, as the optimizer used it, was another one on rank {case.cell.names(odd)} than on all others, which agree to the last bit"
        reductions = [o for o in before.on_first("collective") if reduces_gradients(o)]
        made_by = [stepped, *before.on_first("forward")[:1], *reductions][-1]
    place = write_on_one_rank(case.cell.code) or locations.of_text(made_by.place)
    return DriftCause(says=says, place=place, fix=ALIKE)


def _became_copies(case: Case) -> Iterator[Draft]:
    """Shards of which one overwrote another, while other shards still differ, so that a replicated model is not intended."""
    own = [copies for copies in parameters_of(case) if not copies.ever_equal]
    for copies in parameters_of(case) if own else ():
        apart = next((n for n, (_, values) in enumerate(copies.at) if equal(values)), 0)
        (until, _), (since, values) = copies.at[max(apart - 1, 0)], copies.at[apart]
        first = next(iter(values.values()))
        if apart < LEAST or is_constant(first) or math.prod(first.shape) <= SMALL:
            continue
        step = next(s for s in steps_of(case) if s.number == since)
        loads = [o for ops in step.of("load").values() for o in ops]
        yield silent_error(
            case,
            f"{copies.name} differed between ranks until step {until} and is equal on all from step {since} on, while {own[0].name} still differs: one shard has replaced the others.",
            _sums(copies.name, since, values),
            [*loads, *step.on_first("step")][0].place,
            Where(parameter=copies.name, step=until),
            "Load each rank's own shard.",
            strength=Strength.LIKELY,
        )
        return


RULE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) A parameter that changed but stayed equal on all ranks for some steps differs later; or one shard replaced the others",
    fix="Change parameters on all ranks in the same way.",
    check=broken_equalities,
    keeps="copies",
    explained_by=("control_mismatch", "summed_after_each_backward", "unexchanged_gradients"),
)
