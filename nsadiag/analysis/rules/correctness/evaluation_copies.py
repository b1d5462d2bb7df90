"""Models that all ranks evaluate but that differ: a weight average, for example, that only some ranks update."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.evaluations import (
    LEAST,
    Look,
    Moment,
    first_apart,
    looks_of_model,
    models_everywhere,
)
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import by_rank


def evaluation_copies(case: Case) -> Iterator[Draft | Declined]:
    """Only next to a model in DDP over all ranks, where equal models are intended. DDP's own parameters are compared elsewhere."""
    if not ran_together(case.cell) or not is_replicated(case.cell):
        return
    for model in models_everywhere(case.cell):
        looks = {r.rank: looks_of_model(r, model) for r in case.cell.ranks}
        # Before the first step the ranks' models may still differ.
        shared = sorted(m for m in set.intersection(*map(set, looks.values())) if m[1] > 0)
        apart = {
            moment: p for moment in shared if (p := first_apart([each[moment] for each in looks.values()]))
        }
        if len(apart) < LEAST or shared[-1] not in apart:
            continue
        still = sorted(r for r, each in looks.items() if len({repr(each[m]) for m in apart}) == 1)
        # Copies that every rank changes may be intended: adapted to a task, or to its data.
        if 0 < len(still) < len(looks):
            yield _draft(case, model, looks, apart, still)
            return


def _draft(
    case: Case, model: str, looks: dict[int, dict[Moment, Look]], apart: dict[Moment, str], still: list[int]
) -> Draft:
    (_, first), *_, (call, step) = apart
    parameter, rank = apart[call, step], case.cell.ranks[0]
    sums = by_rank({r: each[call, step][parameter][1] for r, each in looks.items()}, ".6g")
    claims = (
        f"sum over {parameter} of {model} at its evaluation {call}, step {step}: {sums}",
        f"it differed at {len(apart)} snapshots, first at step {first}",
    )
    return silent_error(
        case,
        f"All ranks evaluate a {model}, but the copies differ: that of rank {case.cell.names(still)} never changes, while the others' do.",
        dict.fromkeys(claims, f"{rank.source}/evaluated.jsonl"),
        next((row.place for row in rank.evaluated[::-1] if row.model == model), None),
        Where(parameter=parameter, step=step, phase="forward"),
        ranks=still,
    )


RULE = Rule(
    family="correctness",
    detected="All ranks evaluate a copy of the model, and it differs between them: some ranks keep it up to date, and others never do",
    fix="Update the copy on every rank (a weight average, for example), broadcast it before the evaluation, or evaluate only where it is updated. If separate copies are intended, ignore this.",
    check=evaluation_copies,
    keeps="copies",
    needs=("black_boxes",),
    explained_by=("stale_optimizer",),
)
