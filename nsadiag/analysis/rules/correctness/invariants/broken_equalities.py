"""Parameters that were equal on all ranks for some steps and then differ, or that became equal although each rank had its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, SMALL, reduces_gradients, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    Key,
    Look,
    equal,
    has_moved,
    is_constant,
    kept_equal,
    keys_of,
    looks_of,
    timeline,
    wholes_of,
)
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import differing_setting
from nsadiag.analysis.rules.correctness.replicas.optimizer_steps import skipped_step
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.rank_conditions import write_on_one_rank


@dataclass(frozen=True, kw_only=True)
class Change:
    """A parameter whose copies are equal until one snapshot and differ at the next, or the other way round."""

    key: Key
    until: int  # the last step before the change
    since: int  # the first step after it
    values: dict[int, Checksum]

    @property
    def parameter(self) -> str:
        return self.key[1]

    @property
    def says(self) -> str:
        first = sorted(self.values.items())[:8]
        if not first[0][1].shape:
            shown = ", ".join(f"rank {rank}: {v.exact % (1 << 64):016x}" for rank, v in first)
            return f"checksum over every bit of {self.parameter} before step {self.since}: {shown}"
        shown = ", ".join(f"rank {rank}: {v.total:.8g}" for rank, v in first)
        return f"sum over {self.parameter} before step {self.since}: {shown}"


def broken_equalities(case: Case) -> Iterator[Draft | Declined]:
    looks = looks_of(case)
    if len(looks) <= LEAST:
        yield Declined(
            f"tensors of {len(looks)} steps were recorded on all ranks (`--probes light,invariants` records them)"
        )
        return
    yield from _diverged(case, looks)
    yield from _became_copies(case, looks)
    yield Declined(f"all parameters that were equal on all ranks stayed equal, in {len(looks)} steps")


def _diverged(case: Case, looks: tuple[Look, ...]) -> Iterator[Draft]:
    found = [change for key in keys_of(looks) if (change := _broken(key, timeline(looks, key)))]
    # A single bit of a large tensor is among the elements that are read in every step by chance alone.
    known = {change.key[:2] for change in found}
    wholes = ((key, at) for key, at in wholes_of(case).items() if key[:2] not in known)
    found += [change for key, at in wholes if (change := _broken(key, at))]
    if not found or _stopped_reducing(case, min(change.since for change in found)):
        return
    first = min(found, key=lambda change: change.since)
    together = [change for change in found if change.since == first.since]
    says, place, odd = _operation(case, looks, first)
    more = f" and {len(together) - 1} more" if len(together) > 1 else ""
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{first.parameter}{more} was equal on all ranks until step {first.until}, and differs from step {first.since} on: {says}.",
        guilty_ranks=odd
        or outlier_ranks({rank: v.exact for rank, v in first.values.items()}, case.cell.weight),
        where=Where(parameter=first.parameter, step=first.until, phase="optimizer").at(place),
        evidence={
            first.says: source(case),
            f"until step {first.until} its copies changed in every step and were equal to the last bit": source(
                case
            ),
        },
        fix="Change parameters on all ranks in the same way, or broadcast them after a change on one rank.",
    )


def _stopped_reducing(case: Case, since: int) -> bool:
    """Whether the user's code stopped reducing gradients on all ranks: a phase in which ranks train independently."""
    before, after = (
        any(
            reduces_gradients(o)
            for s in steps_of(case)
            if (s.number >= since) == late
            for ops in s.ranks.values()
            for o in ops
        )
        for late in (False, True)
    )
    return before and not after


def _broken(key: Key, at: list[tuple[int, dict[int, Checksum]]]) -> Change | None:
    held = kept_equal(at)
    if held < LEAST or held == len(at) or has_moved(at[:held]) < LEAST - 1:
        return None
    # Models that are averaged periodically become equal again.
    if any(equal(values) for _, values in at[held:]):
        return None
    return Change(key=key, until=at[held - 1][0], since=at[held][0], values=at[held][1])


def _operation(
    case: Case, looks: tuple[Look, ...], found: Change
) -> tuple[str, Place | None, tuple[int, ...]]:
    """The operation that broke the equality, its line, and the ranks that made it."""
    steps = {step.number: step for step in steps_of(case)}
    step, before = steps[found.since], steps[found.until]
    loads = {rank: len(ops) for rank, ops in step.of("load").items()}
    if len(set(loads.values())) > 1:
        most = tuple(rank for rank, n in loads.items() if n == max(loads.values()))
        operation = step.of("load")[most[0]][0]
        return f"only rank {case.cell.names(most)} loads a state", locations.of_text(operation.place), most
    stepped = next(iter(before.of("step").values()))[0]
    if otherwise := skipped_step(case, found.since):
        return otherwise.says(case.cell.names(otherwise.ranks)), otherwise.place, otherwise.ranks
    apart = differing_setting(case)
    if apart and apart.step <= found.until:
        return f"{apart.setting} is {apart.says}", apart.place, apart.ranks
    written = write_on_one_rank(case.cell.code)
    used = next((look.used.get(found.key) for look in looks if look.step == found.until), None)
    if used is None:
        return (
            "no operation of the recorded ones explains it, as of a bit that flipped in memory",
            written or locations.of_text(stepped.place),
            (),
        )
    if not equal(used):
        operation = _last_reduction(before.ranks) or stepped
        odd = outlier_ranks({rank: v.exact for rank, v in used.items()}, case.cell.weight)
        alone = 0 < len(odd) < len(used) / 2
        return (
            f"its gradient, as the optimizer used it, was another one on rank {case.cell.names(odd)} than on all others, which agree to the last bit"
            if alone
            else "its gradients, as the optimizer used them, differ between the ranks",
            written or locations.of_text(operation.place),
            (),
        )
    return (
        "its gradients were equal, and something else changed it, or the optimizer's state, on some ranks only",
        written or locations.of_text(stepped.place),
        (),
    )


def _last_reduction(ranks: dict[int, tuple[Operation, ...]]) -> Operation | None:
    operations = next(iter(ranks.values()))
    reductions = [o for o in operations if reduces_gradients(o)]
    forwards = [o for o in operations if o.kind == "forward"]
    return reductions[-1] if reductions else forwards[0] if forwards else None


def _became_copies(case: Case, looks: tuple[Look, ...]) -> Iterator[Draft]:
    """Shards of which one overwrote another, while other shards still differ, so that a replicated model is not intended."""
    own = [key for key in keys_of(looks) if not any(equal(v) for _, v in timeline(looks, key))]
    for key in keys_of(looks):
        at = timeline(looks, key)
        apart = next((n for n, (_, values) in enumerate(at) if equal(values)), len(at))
        rest = at[apart:]
        if apart < LEAST or not rest or not own:
            continue
        first = rest[0][1][min(rest[0][1])]
        if is_constant(first) or math.prod(first.shape) <= SMALL:
            continue
        change = Change(key=key, until=at[apart - 1][0], since=rest[0][0], values=rest[0][1])
        step = next(s for s in steps_of(case) if s.number == change.since)
        loads = [o for ops in step.of("load").values() for o in ops]
        stepped = next(iter(step.of("step").values()))[0]
        yield Draft(
            strength=Strength.LIKELY,
            summary=f"{change.parameter} differed between ranks until step {change.until} and is equal on all from step {change.since} on, while {own[0][1]} still differs: one shard has replaced the others.",
            guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
            where=Where(parameter=change.parameter, step=change.until).at(
                locations.of_text((loads[0] if loads else stepped).place)
            ),
            evidence={change.says: source(case)},
            fix="Load each rank's own shard.",
        )
        return


RULE = Rule(
    name="broken_equalities",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="(`--probes light,invariants`) A parameter that changed but stayed equal on all ranks for some steps differs later; or one shard replaced the others",
    fix="Change parameters on all ranks in the same way.",
    check=broken_equalities,
    explained_by=("control_mismatch", "reduce_operations", "unexchanged_gradients"),
    confused_with=("healthy",),
)
