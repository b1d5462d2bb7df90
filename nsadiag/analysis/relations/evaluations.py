"""Models that all ranks evaluate, beside each other: their sums at the same evaluations."""

from __future__ import annotations

from typing import Any

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.replica_sums import TOLERANCE

Look = dict[str, tuple[tuple[int, ...], float, float]]  # by tensor: shape, sum, sum of magnitudes
Moment = tuple[int, int]  # an evaluation's number, and its step
LEAST = 2  # snapshots that differ, including the last


def models_everywhere(cell: CellEvidence) -> list[str]:
    """Types of models that all ranks evaluate equally often; otherwise the models cannot be matched."""
    each = [{row.model for row in rank.evaluated} for rank in cell.ranks]
    everywhere = set.intersection(*each)
    unlike = {name.partition(" ")[0] for name in set.union(*each) - everywhere}
    return sorted(name for name in everywhere if name.partition(" ")[0] not in unlike)


def looks_of_model(rank: RankEvidence, model: str, *, statistics: bool = False) -> dict[Moment, Look]:
    """Sums by call and step: over its parameters, or its running statistics."""
    return {
        (row.call, row.step): {
            each.name: (each.shape, each.total, each.magnitude)
            for each in (row.buffers if statistics else row.parameters)
        }
        for row in rank.evaluated
        if row.model == model
    }


def first_apart(looks: list[Look]) -> str | None:
    """The first tensor that differs; None if the models are equal, or are no copies."""
    shapes: list[Any] = [{name: shape for name, (shape, _, _) in look.items()} for look in looks]
    if any(each != shapes[0] for each in shapes):
        return None
    for name in looks[0]:
        _, totals, magnitudes = zip(*(look[name] for look in looks), strict=True)
        room = TOLERANCE * max(*magnitudes, 1e-30)
        if max(totals) - min(totals) > room or max(magnitudes) - min(magnitudes) > room:
            return name
    return None


def own_at_evaluations(cell: CellEvidence, model: str) -> dict[Moment, str]:
    """The running statistics that ranks differ in where they evaluate the model with equal parameters."""
    held = [
        (looks_of_model(rank, model), looks_of_model(rank, model, statistics=True)) for rank in cell.ranks
    ]
    shared = sorted(m for m in set.intersection(*(set(each) for _, each in held)) if m[1] > 0)
    equal = [m for m in shared if first_apart([each[m] for each, _ in held]) is None]
    found = {m: name for m in equal if (name := first_apart([each[m] for _, each in held]))}
    return found if len(found) >= LEAST and shared[-1] in found else {}
