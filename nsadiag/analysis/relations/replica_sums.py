"""Sums of some parameters, compared step by step: the ranks' copies of the model are one model as long as they agree."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.training import Sum, Sums
from nsadiag.evidence.spans import by_rank

# Of the sum of magnitudes. Copies that are kept equal are so to the last bit; the sums are taken in double.
TOLERANCE = 1e-6
UNTOLD = (0, 1)  # the wrap and the optimizer of which older recordings say nothing
# Parts of a model that are called by themselves have parameters of one name: the place in the list tells them apart.
Tensor = tuple[int, str]


class Moment(NamedTuple):
    """Looks at the ranks are of one moment where each has made as many steps since the same wrap, with the same optimizer."""

    wraps: int
    optimizer: int
    since: int


@dataclass(frozen=True, kw_only=True)
class Look:
    """The sums that one rank recorded after a step, of the tensors that are compared."""

    rank: int
    moment: Moment
    row: Sums
    tensors: dict[Tensor, Sum]


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
        return f"{self.of} over {self.parameter} after step {self.step}: {by_rank(self.values, '.6g')}"

    @property
    def source(self) -> str:
        return f"ranks/{self.odd[0]:05d}/replicas.jsonl"


def not_finite(rank: RankEvidence) -> tuple[int, str] | None:
    """The first step after which a parameter is no longer finite, and its name."""
    for row in rank.replicas[1:]:
        for began, now in zip(rank.replicas[0].parameters, row.parameters, strict=False):
            if math.isfinite(began.total) and not math.isfinite(now.total):
                return row.step, now.name
    return None


def drift(
    cell: CellEvidence,
    among: frozenset[str] | None = None,
    left_out: bool = False,
    in_step: bool = True,
) -> Drift | None:
    """The earliest, of the parameters `among`; None where they agree, or were not compared, or are no copies.

    Looks count until ranks have taken part in other numbers of collectives by the same step (`in_step`), as under Join.
    Those that DDP does not reduce although they are in its model are `left_out`: looked at for themselves.
    """
    looks = _comparable(list(_looks(cell, among, left_out)), max(len(cell.met), 2))
    if not _are_copies(looks):
        return None
    moments = [each for each in _by_moment(looks) if len({look.rank for look in each}) >= len(cell.met)]
    together = [*itertools.takewhile(lambda each: _in_step(moments, each), moments)] if in_step else moments
    found = (_drift_at(each, looks, cell.weight) for each in together)
    return next(filter(None, found), None)


def written_alone(cell: CellEvidence, found: Drift) -> dict[int, int]:
    """Ranks that wrote into the parameter more often than the others just before the copies differed: how much more often.

    Empty where none did, most did, or one had done so while the copies were still equal: that did no harm then.
    """
    counts: dict[int, dict[int, int]] = defaultdict(dict)
    for look in _looks(cell, frozenset({found.parameter})):
        written = [look.row.written[place] for place, _ in look.tensors if place < len(look.row.written)]
        if written and look.moment.wraps == found.wraps and look.moment.since <= found.since:
            counts[look.moment.since].setdefault(look.rank, written[0])
    ranks = set().union(*counts.values())
    whole = [(since, each) for since, each in sorted(counts.items()) if len(each) == len(ranks)]
    # An optimizer writes the same number of times in every step.
    if len(whole) < 2 or len(ranks) < len(cell.met) or whole[-1][0] != found.since:
        return {}
    each = [
        {rank: now[rank] - then[rank] for rank in now} for (_, then), (_, now) in itertools.pairwise(whole)
    ]
    *before, last = [
        {rank: n - min(more.values()) for rank, n in more.items() if n > min(more.values())} for more in each
    ]
    return last if not any(before) and len(last) <= len(ranks) / 2 else {}


def kept_equal(cell: CellEvidence, among: frozenset[str] | None = None) -> frozenset[str]:
    """Parameters that moved, and stayed equal on all ranks: their gradients are reduced, however that is done."""
    totals: dict[Tensor, list[set[float]]] = defaultdict(list)
    for looks in _by_moment(list(_looks(cell, among))):
        for tensor, sums in _by_tensor(looks).items():
            totals[tensor].append({each.total for _, each in sums})
    alike = [
        t for t, found in totals.items() if all(len(each) == 1 and not math.isnan(*each) for each in found)
    ]
    return frozenset(name for place, name in alike if len(set().union(*totals[place, name])) > 1)


def summed(cell: CellEvidence) -> dict[str, int]:
    """The parameters that were compared, with their numbers of elements; under "" that of the whole model."""
    rows = [row for rank in cell.ranks for row in rank.replicas]
    found = {name: math.prod(shape) for row in rows for name, shape, _, _ in row.parameters}
    return {**found, "": max((row.elements for row in rows), default=0)}


def _looks(cell: CellEvidence, among: frozenset[str] | None = None, left_out: bool = False) -> Iterator[Look]:
    for rank in cell.ranks:
        for row in rank.replicas:
            tensors = {
                (place, each.name): each
                for place, each in enumerate(row.parameters)
                if (among is None or each.name in among) and (place in row.left_out) == left_out
            }
            if tensors:
                # Older recordings count steps alone.
                since = row.step if row.since is None else row.since
                moment = Moment(*(row.subject or UNTOLD), since)
                yield Look(rank=rank.rank, moment=moment, row=row, tensors=tensors)


def _by_moment(looks: list[Look]) -> list[list[Look]]:
    found: dict[Moment, list[Look]] = defaultdict(list)
    for look in looks:
        found[look.moment].append(look)
    return [found[moment] for moment in sorted(found)]


def _by_tensor(looks: list[Look]) -> dict[Tensor, list[tuple[int, Sum]]]:
    """The sums of each with their ranks."""
    found: dict[Tensor, list[tuple[int, Sum]]] = defaultdict(list)
    for look in looks:
        for tensor, each in look.tensors.items():
            found[tensor].append((look.rank, each))
    return found


def _comparable(looks: list[Look], ranks: int) -> list[Look]:
    """Without what some ranks trained for themselves: before a wrap, or with an optimizer that others had not."""
    everyone = {look.rank for look in looks}
    newest: dict[int, dict[int, int]] = defaultdict(dict)
    for look in looks:
        mine = newest[look.moment.wraps]
        mine[look.rank] = max(mine.get(look.rank, 0), look.moment.optimizer)
    alike = {w for w, each in newest.items() if set(each) == everyone and len(set(each.values())) == 1}
    return [look for look in looks if look.moment.wraps in alike] if len(everyone) >= ranks else []


def _are_copies(looks: list[Look]) -> bool:
    """Whether all ranks have the same parameters: stages, shards and experts have others on each, and are no copies."""
    shapes: dict[int, dict[Tensor, tuple[int, ...]]] = defaultdict(dict)
    for look in looks:
        for tensor, each in look.tensors.items():
            shapes[look.rank].setdefault(tensor, each.shape)
    return bool(shapes) and all(each == next(iter(shapes.values())) for each in shapes.values())


def _in_step(moments: list[list[Look]], looks: list[Look]) -> bool:
    """Whether equal numbers of own steps are one moment there: all ranks have issued the same collectives since the first snapshot.

    Or more of them by a backward more: that is a step which a rank left out. What older recordings do not say is so.
    """
    first = next(each for each in moments if each[0].moment[:2] == looks[0].moment[:2])
    begun, now = ({look.rank: look.row for look in each[::-1]} for each in (first, looks))
    made: set[tuple[int, int]] = set()  # collectives and backwards since then
    for rank, row in now.items():
        before = begun[rank]
        if row.issued is None or before.issued is None:
            return True
        if row.shadowed != before.shadowed:
            return False  # the same again for the others may have made the numbers equal
        made.add((row.issued - before.issued, (row.backwards or 0) - (before.backwards or 0)))
    if len({issued for issued, _ in made}) == 1:
        return True
    shares = {
        (issued / gcd, backwards / gcd) for issued, backwards in made if (gcd := math.gcd(issued, backwards))
    }
    return len(shares) == 1 and len({backwards for _, backwards in made}) > 1


def _drift_at(looks: list[Look], among: list[Look], weight: Callable[[int], float]) -> Drift | None:
    """The drift at a moment; of values that differ the sum may be one (a softmax's own layer), and hardly ever the sum of magnitudes as well."""
    first = looks[0]
    begun = [look.moment for look in among if look.moment.wraps == first.moment.wraps]
    start = min(moment.optimizer for moment in begun), min(moment.since for moment in begun)
    for of in ("sum", "sum of magnitudes"):
        for (_, parameter), sums in _by_tensor(looks).items():
            values = {rank: each.total if of == "sum" else each.magnitude for rank, each in sums}
            known = _known(values.values())
            size = max(_known(each.magnitude for _, each in sums), default=math.inf)
            gap = (max(known, default=0.0) - min(known, default=0.0)) / max(size, 1e-30)
            if gap > TOLERANCE:
                return Drift(
                    step=first.row.step,
                    wraps=first.moment.wraps,
                    since=first.moment.since,
                    parameter=parameter,
                    values=values,
                    from_start=first.moment[1:] == start,
                    odd=outlier_ranks(values, weight),
                    gap=gap,
                    of=of,
                )
    return None


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def counts_since_wrap(cell: CellEvidence) -> bool:
    """Whether steps before a wrap, which ranks may have made in other numbers, are told from those after it."""
    return all(row.subject for rank in cell.ranks for row in rank.replicas)
