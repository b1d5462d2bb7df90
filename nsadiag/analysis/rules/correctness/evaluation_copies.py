"""Models that all ranks evaluate but that differ: a weight average, for example, that only some ranks update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import TOLERANCE
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where

Look = dict[str, tuple[tuple[int, ...], float, float]]  # by parameter: shape, sum, sum of magnitudes
LEAST = 2  # snapshots that differ, including the last


def evaluation_copies(case: Case) -> Iterator[Draft | Declined]:
    """Only next to a model in DDP over all ranks, where equal models are intended. DDP's own parameters are compared elsewhere."""
    if not ran_together(case.cell):
        return
    everyone = case.cell.world_size
    if not all(r.ddp and all(len(m.ranks) == everyone for m in r.ddp) for r in case.cell.ranks):
        return
    for model in _models(case.cell):
        looks = {r.rank: _looks(r, model) for r in case.cell.ranks}
        everywhere = (m for m in next(iter(looks.values())) if all(m in each for each in looks.values()))
        # Before the first step the ranks' models may still differ.
        shared = sorted(moment for moment in everywhere if moment[1] > 0)
        apart = [(m, p) for m in shared if (p := _apart([each[m] for each in looks.values()]))]
        if len(apart) < LEAST or apart[-1][0] != shared[-1]:
            continue
        still = sorted(r for r, each in looks.items() if len({repr(each[m]) for m, _ in apart}) == 1)
        # Copies that every rank changes may be intended: adapted to a task, or to its data.
        if 0 < len(still) < len(looks):
            yield _finding(case.cell, model, looks, apart, still)
            return


def _models(cell: CellEvidence) -> list[str]:
    """Types of models that all ranks evaluate equally often; otherwise the models cannot be matched."""
    each = [{row.model for row in rank.evaluated} for rank in cell.ranks]
    some, everywhere = (
        {name for names in each for name in names},
        {n for n in each[0] if all(n in e for e in each)},
    )
    unlike = {name.partition(" ")[0] for name in some - everywhere}
    return sorted(name for name in everywhere if name.partition(" ")[0] not in unlike)


def _called_at(rank: RankEvidence, model: str) -> str:
    return next((row.place for row in rank.evaluated[::-1] if row.model == model), "")


def _looks(rank: RankEvidence, model: str) -> dict[tuple[int, int], Look]:
    """The model's sums by call and step."""
    return {
        (row.call, row.step): {each.name: (each.shape, each.total, each.magnitude) for each in row.parameters}
        for row in rank.evaluated
        if row.model == model
    }


def _apart(looks: list[Look]) -> str | None:
    """The first parameter that differs; None if the models are equal, or are no copies."""
    first = looks[0]
    shapes: list[Any] = [{name: shape for name, (shape, _, _) in look.items()} for look in looks]
    if any(each != shapes[0] for each in shapes):
        return None
    for name in first:
        totals, magnitudes = [look[name][1] for look in looks], [look[name][2] for look in looks]
        room = TOLERANCE * max(*magnitudes, 1e-30)
        if max(totals) - min(totals) > room or max(magnitudes) - min(magnitudes) > room:
            return name
    return None


def _finding(
    cell: CellEvidence,
    model: str,
    looks: dict[int, dict[tuple[int, int], Look]],
    apart: list[tuple[tuple[int, int], str]],
    still: list[int],
) -> Draft:
    (call, step), parameter = apart[-1]
    shown = ", ".join(
        f"rank {r}: {each[call, step][parameter][1]:.6g}" for r, each in list(looks.items())[:8]
    )
    return Draft(
        strength=Strength.STRONG,
        summary=f"All ranks evaluate a {model}, but the copies differ: that of rank {cell.names(still)} never changes, while the others' do.",
        guilty_ranks=tuple(still),
        where=Where(parameter=parameter, step=step, phase="forward").at(
            locations.of_text(_called_at(cell.ranks[0], model))
        ),
        evidence={
            f"sum over {parameter} of {model} at its evaluation {call}, step {step}: {shown}": f"{cell.ranks[0].source}/evaluated.jsonl",
            f"it differed at {len(apart)} snapshots, first at step {apart[0][0][1]}": f"{cell.ranks[0].source}/evaluated.jsonl",
        },
    )


RULE = Rule(
    name="evaluation_copies",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="All ranks evaluate a copy of the model, and it differs between them: some ranks keep it up to date, and others never do",
    fix="Update the copy on every rank (a weight average, for example), broadcast it before the evaluation, or evaluate only where it is updated. If separate copies are intended, ignore this.",
    check=evaluation_copies,
    needs=("black_boxes",),
    explained_by=("stale_optimizer",),
    confused_with=("healthy",),
)
