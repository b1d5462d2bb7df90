"""Models that all ranks evaluate but that differ: a weight average, for example, that only some ranks update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import TOLERANCE
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import by_rank

Look = dict[str, tuple[tuple[int, ...], float, float]]  # by parameter: shape, sum, sum of magnitudes
Moment = tuple[int, int]  # an evaluation's number, and its step
LEAST = 2  # snapshots that differ, including the last


def evaluation_copies(case: Case) -> Iterator[Draft | Declined]:
    """Only next to a model in DDP over all ranks, where equal models are intended. DDP's own parameters are compared elsewhere."""
    if not ran_together(case.cell) or not is_replicated(case.cell):
        return
    for model in _models(case.cell):
        looks = {r.rank: _looks(r, model) for r in case.cell.ranks}
        # Before the first step the ranks' models may still differ.
        shared = sorted(m for m in set.intersection(*map(set, looks.values())) if m[1] > 0)
        apart = {moment: p for moment in shared if (p := _apart([each[moment] for each in looks.values()]))}
        if len(apart) < LEAST or shared[-1] not in apart:
            continue
        still = sorted(r for r, each in looks.items() if len({repr(each[m]) for m in apart}) == 1)
        # Copies that every rank changes may be intended: adapted to a task, or to its data.
        if 0 < len(still) < len(looks):
            yield _draft(case, model, looks, apart, still)
            return


def _models(cell: CellEvidence) -> list[str]:
    """Types of models that all ranks evaluate equally often; otherwise the models cannot be matched."""
    each = [{row.model for row in rank.evaluated} for rank in cell.ranks]
    everywhere = set.intersection(*each)
    unlike = {name.partition(" ")[0] for name in set.union(*each) - everywhere}
    return sorted(name for name in everywhere if name.partition(" ")[0] not in unlike)


def _looks(rank: RankEvidence, model: str) -> dict[Moment, Look]:
    """The model's sums by call and step."""
    return {
        (row.call, row.step): {each.name: (each.shape, each.total, each.magnitude) for each in row.parameters}
        for row in rank.evaluated
        if row.model == model
    }


def _apart(looks: list[Look]) -> str | None:
    """The first parameter that differs; None if the models are equal, or are no copies."""
    shapes: list[Any] = [{name: shape for name, (shape, _, _) in look.items()} for look in looks]
    if any(each != shapes[0] for each in shapes):
        return None
    for name in looks[0]:
        _, totals, magnitudes = zip(*(look[name] for look in looks), strict=True)
        room = TOLERANCE * max(*magnitudes, 1e-30)
        if max(totals) - min(totals) > room or max(magnitudes) - min(magnitudes) > room:
            return name
    return None


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
