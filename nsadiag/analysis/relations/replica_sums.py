"""Sums of some parameters, compared step by step: the ranks' copies of the model are one model as long as they agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import CellEvidence

# Of the sum of magnitudes. Copies that are kept equal are so to the last bit; the sums are taken in double.
TOLERANCE = 1e-6
# Parts of a model that are called by themselves have parameters of one name: the place in the list tells them apart.
UNTOLD = (0, 1)  # the wrap and the optimizer of which older recordings say nothing
SAME = ["place", "parameter"]
# Looks at the ranks are of one moment where each has made as many steps since the same wrap, with the same optimizer.
MOMENT = ["wraps", "optimizer", "since"]
# Of a rank until then: collectives of the whole job, its own backwards, and forwards of others that it went along in.
COUNTED = ["issued", "backwards", "shadowed"]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The first step after which the copies differ."""

    step: int
    wraps: int  # in DDP until then
    since: int  # steps since the last of these, or since the start
    parameter: str
    values: dict[int, float]
    from_start: bool  # they were never equal
    odd: tuple[int, ...]  # the minority; all ranks where there is none
    gap: float  # the largest difference, as a share of the magnitudes
    of: str = "sum"

    @property
    def says(self) -> str:
        """For an evidence's claim."""
        shown = ", ".join(f"rank {r}: {v:.6g}" for r, v in sorted(self.values.items())[:8])
        return f"{self.of} over {self.parameter} after step {self.step}: {shown}"

    @property
    def source(self) -> str:
        return f"ranks/{self.odd[0]:05d}/replicas.jsonl"


def drift(
    cell: CellEvidence,
    among: frozenset[str] | None = None,
    left_out: bool = False,
    of: str = "parameters",
    latest: bool = False,
    in_step: bool = True,
) -> Drift | None:
    """The earliest (or what there is at the `latest` look), of the parameters `among`; None where they agree, or were not compared, or are no copies.

    Looks count until ranks have taken part in other numbers of collectives by the same step (`in_step`), as under Join.
    Those that DDP does not reduce although they are in its model are `left_out`: looked at for themselves. So are
    `buffers`.
    """
    table = _table(cell, of)
    table = table[table.left_out == left_out]
    if among is not None:
        table = table[table.parameter.isin(among)]
    table = _comparable(table, max(len(cell.met), 2))
    if table.empty:
        return None
    shapes = table.groupby([*SAME, "rank"])["shape"].first().unstack("rank")
    # Stages, shards and experts have other parameters on each rank: those are no copies.
    if shapes.isna().any(axis=None) or (shapes.nunique(axis=1) > 1).any():
        return None
    moments = [(m, rows) for m, rows in table.groupby(MOMENT) if rows["rank"].nunique() >= len(cell.met)]
    together = [*itertools.takewhile(lambda m: _in_step(moments, m), moments)] if in_step else moments
    for moment, rows in together[-1:] if latest else together:
        found = _at_step(rows, cell.weight)
        if found:
            parameter, values, odd, gap, says = found
            wraps, optimizer, since = (int(str(part)) for part in moment)
            begun = table[table.wraps == wraps][MOMENT[1:]].min().tolist()
            return Drift(
                step=int(rows.step.iloc[0]),
                wraps=wraps,
                since=since,
                parameter=parameter,
                values=values,
                from_start=[optimizer, since] == begun,
                odd=odd,
                gap=gap,
                of=says,
            )
    return None


def written_alone(cell: CellEvidence, found: Drift) -> dict[int, int]:
    """Ranks that wrote into the parameter more often than the others just before the copies differed: how much more often.

    Empty where none did, most did, or one had done so while the copies were still equal: that did no harm then.
    """
    table = _table(cell)
    mine = table[(table.parameter == found.parameter) & (table.wraps == found.wraps) & ~table.left_out]
    mine = mine[mine.since <= found.since].dropna(subset="written")
    if mine.empty:
        return {}
    counts = mine.pivot_table(index="since", columns="rank", values="written", aggfunc="first").dropna()
    each = counts.diff().iloc[1:]
    # An optimizer writes the same number of times in every step.
    if len(counts) < 2 or counts.shape[1] < len(cell.met) or each.index[-1] != found.since:
        return {}
    more = each.sub(each.min(axis=1), axis=0)
    last = more.iloc[-1]
    if more.iloc[:-1].any(axis=None) or not 0 < (last > 0).sum() <= counts.shape[1] / 2:
        return {}
    rows = last[last > 0]
    return {int(r): int(n) for r, n in zip(rows.index.tolist(), rows.tolist(), strict=True)}


def kept_equal(cell: CellEvidence, among: frozenset[str] | None = None) -> frozenset[str]:
    """Parameters that moved, and stayed equal on all ranks: their gradients are reduced, however that is done."""
    table = _table(cell)
    table = table[~table.left_out]
    if among is not None:
        table = table[table.parameter.isin(among)]
    if table.empty:
        return frozenset()
    values = table.groupby([*SAME, *MOMENT])["sum"].agg(["min", "max"])
    each = values.groupby(SAME)
    alike = (values["min"] == values["max"]).groupby(SAME).all() & (each["max"].nunique() > 1)
    return frozenset(str(name) for _, name in alike[alike].index)


def summed(cell: CellEvidence) -> dict[str, int]:
    """The parameters that were compared, with their numbers of elements; under "" that of the whole model."""
    rows = [row for rank in cell.ranks for row in rank.replicas]
    found = {name: math.prod(shape) for row in rows for name, shape, _, _ in row.parameters}
    return {**found, "": max((row.elements for row in rows), default=0)}


def _in_step(moments: list[tuple[Any, pd.DataFrame]], moment: tuple[Any, pd.DataFrame]) -> bool:
    """Whether equal numbers of own steps are one moment there: all ranks have issued the same collectives since the first snapshot.

    Or more of them by a backward more: that is a step which a rank left out. What older recordings do not say is so.
    """
    key, rows = moment
    first = next(each for other, each in moments if other[:2] == key[:2])
    since = rows.groupby("rank")[COUNTED].first() - first.groupby("rank")[COUNTED].first()
    if since.issued.isna().any():
        return True
    if since.shadowed.any():
        return False  # the same again for the others may have made the numbers equal
    if since.issued.nunique() == 1:
        return True
    each = {
        (i / gcd, b / gcd)
        for i, b in since[COUNTED[:2]].astype(int).itertuples(index=False)
        if (gcd := math.gcd(i, b))
    }
    return len(each) == 1 and since.backwards.nunique() > 1


def _at_step(
    rows: pd.DataFrame, weight: Callable[[int], float]
) -> tuple[str, dict[int, float], tuple[int, ...], float, str] | None:
    parts = rows.groupby(SAME, sort=False)[["sum", "magnitude"]]
    most, least = parts.max(), parts.min()
    # Values that differ may have one sum (a softmax's own layer), and hardly ever one sum of magnitudes as well.
    for column, says in (("sum", "sum"), ("magnitude", "sum of magnitudes")):
        spread = most[column] - least[column]
        apart = spread[spread > TOLERANCE * most.magnitude.clip(lower=1e-30)]
        if apart.empty:
            continue
        place, parameter = apart.index[0]
        of = rows[(rows.place == place) & (rows.parameter == parameter)]
        values = {int(r): float(v) for r, v in zip(of["rank"], of[column], strict=True)}
        gap = float(apart.iloc[0]) / float(most.magnitude.loc[apart.index[0]])
        return str(parameter), values, outlier_ranks(values, weight), gap, says
    return None


class Measurement(NamedTuple):
    """The sums of one tensor of a rank, at one moment."""

    rank: int
    step: int
    wraps: int
    optimizer: int
    since: int
    issued: float | None
    backwards: float | None
    shadowed: int
    place: int
    parameter: str
    left_out: bool
    shape: str
    written: float | None
    sum: float
    magnitude: float


def _table(cell: CellEvidence, of: str = "parameters") -> pd.DataFrame:
    rows = [
        Measurement(
            rank=rank.rank,
            step=row.step,
            # Older recordings count steps alone.
            wraps=(row.subject or UNTOLD)[0],
            optimizer=(row.subject or UNTOLD)[1],
            since=row.step if row.since is None else row.since,
            issued=row.issued,
            backwards=row.backwards,
            shadowed=row.shadowed,
            place=place,
            parameter=name,
            left_out=of == "parameters" and place in row.left_out,
            shape=str([*shape]),
            written=dict(enumerate(row.written)).get(place) if of == "parameters" else None,
            sum=float(total),
            magnitude=float(magnitude),
        )
        for rank in cell.ranks
        for row in rank.replicas
        for place, (name, shape, total, magnitude) in enumerate(
            row.parameters if of == "parameters" else row.buffers
        )
    ]
    floats = {"issued": float, "backwards": float, "written": float}
    return pd.DataFrame(rows, columns=[*Measurement._fields]).astype(floats)


def _comparable(table: pd.DataFrame, ranks: int) -> pd.DataFrame:
    """Without what some ranks trained for themselves: before a wrap, or with an optimizer that others had not."""
    optimizers = table.groupby(["wraps", "rank"]).optimizer.max().unstack("rank")
    alike = optimizers.notna().all(axis=1) & (optimizers.nunique(axis=1) == 1)
    if optimizers.shape[1] < ranks:
        return table.iloc[:0]
    return table[table.wraps.isin(optimizers.index[alike])]


def counts_since_wrap(cell: CellEvidence) -> bool:
    """Whether steps before a wrap, which ranks may have made in other numbers, are told from those after it."""
    return all(row.subject for rank in cell.ranks for row in rank.replicas)
