"""Checkpoints from which nothing is loaded, since strict=False and no name matches the model."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where


def empty_loads(case: Case) -> Iterator[Draft | Declined]:
    if case.cell.stopped == "hang" or any(rank.exception for rank in case.cell.ranks):
        return
    loads = [
        (r, row.step, o)
        for r in case.cell.ranks
        for row in r.observed
        for o in row.operations
        if o.kind == "load"
    ]
    fits = {(rank.rank, o.name) for rank, _, o in loads if o.unexpected < o.given}
    # A load that is retried with other names and then fits is fine.
    empty = [
        (rank, step, o)
        for rank, step, o in loads
        if o.given and o.unexpected >= o.given and o.missing and (rank.rank, o.name) not in fits
    ]
    if not empty:
        yield Declined(f"each of {len(loads)} loads of a state contained names of the model")
        return
    rank, step, load = empty[0]
    yield Draft(
        strength=Strength.STRONG,
        summary=f"Nothing of a checkpoint is loaded into {load.name}: none of its {load.given} names is one of the model's, and strict=False accepts that.",
        guilty_ranks=tuple(sorted({r.rank for r, _, _ in empty})),
        where=Where(step=step).at(locations.of_text(load.place)),
        evidence={
            f"load_state_dict with {load.given} names: {load.unexpected} unexpected, {load.missing} of the model's missing": source(
                case, rank.rank
            )
        },
    )


RULE = Rule(
    name="empty_loads",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="load_state_dict(strict=False) with no name that matches the model",
    fix="Make the names match (a prefix such as `module.` or `_orig_mod.` comes from a wrapper), and check missing_keys.",
    check=empty_loads,
    explained_by=("nonfinite",),
    confused_with=("healthy",),
)
