"""Whether the ranks' copies of the model are still one model: sums of some parameters, compared step by step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nsadiag.analysis.load import CellEvidence

# Of the sum of magnitudes. Copies that are kept equal are so to the last bit; the sums are taken in double.
TOLERANCE = 1e-6
# Parts of a model that are called by themselves have parameters of one name: the place in the list tells them apart.
SAME = ["place", "parameter"]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The first step after which the copies differ."""

    step: int
    parameter: str
    values: dict[int, float]
    from_start: bool  # they were never equal
    odd: tuple[int, ...]  # the minority; all ranks where there is none
    gap: float  # the largest difference, as a share of the magnitudes

    @property
    def says(self) -> str:
        """For an evidence's claim."""
        shown = ", ".join(f"rank {r}: {v:.6g}" for r, v in sorted(self.values.items())[:8])
        return f"sum over {self.parameter} after step {self.step}: {shown}"

    @property
    def source(self) -> str:
        return f"ranks/{self.odd[0]:05d}/replicas.jsonl"


def drift(cell: CellEvidence, among: frozenset[str] | None = None) -> Drift | None:
    """The earliest, of the parameters `among`; None where they agree, or were not compared, or are no copies."""
    table = _table(cell)
    if among is not None:
        table = table[table.parameter.isin(among)]
    if table.empty or table["rank"].nunique() < max(len(cell.met), 2):
        return None
    shapes = table.groupby([*SAME, "rank"])["shape"].first().unstack("rank")
    # Stages, shards and experts have other parameters on each rank: those are no copies.
    if shapes.isna().any(axis=None) or (shapes.nunique(axis=1) > 1).any():
        return None
    first = int(table.step.min())
    for step, rows in table.groupby("step"):
        if rows["rank"].nunique() < len(cell.met):
            continue
        found = _at_step(rows)
        if found:
            parameter, values, odd, gap = found
            return Drift(
                step=int(str(step)),
                parameter=parameter,
                values=values,
                from_start=int(str(step)) == first,
                odd=odd,
                gap=gap,
            )
    return None


def summed(cell: CellEvidence) -> dict[str, int]:
    """The parameters that were compared, with their numbers of elements; under "" that of the whole model."""
    rows = [row for rank in cell.ranks for row in rank.replicas]
    found = {name: math.prod(shape) for row in rows for name, shape, _, _ in row["parameters"]}
    return {**found, "": max((int(row.get("elements") or 0) for row in rows), default=0)}


def _at_step(rows: pd.DataFrame) -> tuple[str, dict[int, float], tuple[int, ...], float] | None:
    for (_, parameter), of in rows.groupby(SAME, sort=False):
        spread = float(of["sum"].max() - of["sum"].min())
        magnitude = float(of["magnitude"].max())
        if spread > TOLERANCE * max(magnitude, 1e-30):
            values = {int(r): float(v) for r, v in zip(of["rank"], of["sum"], strict=True)}
            return str(parameter), values, _odd(values), spread / magnitude
    return None


def _odd(values: dict[int, float]) -> tuple[int, ...]:
    counts = Counter(values.values()).most_common()
    if len(counts) > 1 and counts[0][1] > counts[1][1] and counts[0][1] > 1:
        return tuple(sorted(r for r, v in values.items() if v != counts[0][0]))
    return tuple(sorted(values))


def _table(cell: CellEvidence) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "rank": rank.rank,
            "step": int(row["step"]),
            "place": place,
            "parameter": name,
            "shape": str(shape),
            "sum": float(total),
            "magnitude": float(magnitude),
        }
        for rank in cell.ranks
        for row in rank.replicas
        for place, (name, shape, total, magnitude) in enumerate(row["parameters"])
    ]
    return pd.DataFrame(rows, columns=["rank", "step", *SAME, "shape", "sum", "magnitude"])
