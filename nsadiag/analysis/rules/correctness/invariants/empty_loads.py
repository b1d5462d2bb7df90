"""Checkpoints from which nothing is loaded, since strict=False and no name matches the model."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import noted
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Where


def empty_loads(case: Case) -> Iterator[Draft | Declined]:
    if not ran_well(case.cell):
        return
    loads = [(r.rank, step, o) for r in case.cell.ranks for step, o in noted(r, "load")]
    fits = {(rank, o.name) for rank, _, o in loads if o.unexpected < o.given}
    # A load that is retried with other names and then fits is fine.
    empty = [
        (rank, step, o)
        for rank, step, o in loads
        if o.given and o.unexpected >= o.given and o.missing and (rank, o.name) not in fits
    ]
    if not empty:
        yield Declined(
            "every state that was loaded had names of the model" if loads else "no state was loaded"
        )
        return
    rank, step, load = empty[0]
    yield silent_error(
        case,
        f"Nothing of a checkpoint is loaded into {load.name}: none of its {load.given} names is one of the model's, and strict=False accepts that.",
        f"load_state_dict with {load.given} names: {load.unexpected} unexpected, {load.missing} of the model's missing",
        load.place,
        Where(step=step),
        ranks=sorted({rank for rank, _, _ in empty}),
        shown_by=rank,
    )


RULE = Rule(
    family="correctness",
    detected="load_state_dict(strict=False) with no name that matches the model",
    fix="Make the names match (a prefix such as `module.` or `_orig_mod.` comes from a wrapper), and check missing_keys.",
    check=empty_loads,
    explained_by=("nonfinite",),
)
