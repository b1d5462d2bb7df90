"""Parameters that one rank updates for all and never sends to the others, beside parameters that are sent after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    noted,
    one_optimizer,
    reduced_names,
    source,
    steps_of,
)
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum
from nsadiag.evidence.phrases import are, count
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import by_rank, shortened

Series = list[Checksum]  # of one parameter on one rank, step by step


def unsent_updates(case: Case) -> Iterator[Draft | Declined]:
    """Only where each rank's optimizer holds a share of one model, and gradients are reduced on all ranks."""
    steps = steps_of(case)
    owner = _owners(case) if len(steps) > LEAST and one_optimizer(steps) else {}
    sent = Counter(
        (role.partition(" ")[2], o.place)
        for rank in case.cell.ranks
        for _, o in noted(rank, "collective")
        for role in o.roles
        if role.startswith("parameter ")
    )
    if not owner or not sent:
        yield from in_recorded_steps(
            case,
            f"{len(owner) or 'no'} parameters are updated by one rank alone, and {len({name for name, _ in sent}) or 'none'} sent to others",
        )
        return
    known = {name for name, _ in sent}
    unsent = [name for name in sorted(owner) if name in reduced_names(case) and name not in known]
    kept = {name: stale for name in unsent if (stale := _stale(case, name, owner[name]))}
    if not kept:
        yield Declined(
            f"the updates of {count(len(owner), 'parameter')}, each made by one rank, arrive on all others",
            source(case),
        )
        return
    first, stale = next(iter(kept.items()))
    mine, others = named(case.cell, (owner[first],)), named(case.cell, stale)
    ends = {rank: series[-1].total for rank, series in {**stale, **_series(case, first, "step")}.items()}
    place = Counter(place for _, place in sent.elements()).most_common(1)[0][0]
    yield silent_error(
        case,
        f"{shortened(list(kept), 1)} {are(list(kept))} updated on {mine} alone and never sent to the others: on {others} {first} stays what it was at the start, although its gradient is reduced on all ranks and {len(known)} other parameters are sent after each step.",
        f"sum over {first} before step {steps[-1].number}: {by_rank(ends, '.8g')}",
        place,
        Where(parameter=first, step=steps[0].number, phase="optimizer"),
    )


def _owners(case: Case) -> dict[str, int]:
    """The rank whose optimizer holds each parameter; empty where several hold one."""
    held: dict[str, int] = {}
    for rank, operations in steps_of(case)[0].ranks.items():
        names = [value.name for o in operations if o.kind == "step" for value in o.values]
        if not names or not held.keys().isdisjoint(names):
            return {}
        held |= dict.fromkeys(names, rank)
    return held


def _stale(case: Case, name: str, owner: int) -> dict[int, Series]:
    """By rank, its copies where they never change; empty where the owner's do not either, or another's do."""
    mine = _series(case, name, "step").get(owner, [])
    theirs = {rank: found for rank, found in _series(case, name, "beside").items() if rank != owner}
    still = all(len({value.exact for value in found}) == 1 for found in theirs.values())
    return theirs if still and len({value.exact for value in mine}) > LEAST else {}


def _series(case: Case, name: str, kind: str) -> dict[int, Series]:
    """By rank, its copies in an optimizer (`step`), or in a model whose optimizer is another rank's (`beside`)."""
    found: dict[int, Series] = {}
    for step in steps_of(case):
        for rank, rows in step.of(kind).items():
            for value in (v for o in rows for v in o.values):
                if (value.name.partition(".")[2] if kind == "beside" else value.name) == name:
                    found.setdefault(rank, []).append(value)
    return found


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) Each rank updates a share of the parameters (a sharded optimizer by hand), and some are never sent: they move on their owner, and stand still on the others",
    fix="Broadcast every parameter from its owner after the step, also the last ones where they do not divide evenly.",
    check=unsent_updates,
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)
