"""The first collective in which ranks gathered different FSDP units under one number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.modules import branch_in

GATHERS = "unshard "
PASSES = (Kind.FORWARD, Kind.BACKWARD)
OF_FSDP2 = "FSDP"  # prefix of the class that was passed to fully_shard


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """A collective of one rank, and the unit that it gathered."""

    group: str
    number: int
    unit: str
    step: int
    began: tuple[int, int]  # the kind of pass, forward or backward, and the collective


@dataclass(frozen=True, kw_only=True)
class DifferingUnits:
    """The different units that ranks gathered in one collective."""

    by: dict[int, Gathered]
    odd: tuple[int, ...]  # the minority; all where there is none
    place: Place | None  # the condition in the model on which the skipped units depend, if there is one

    @property
    def one(self) -> Gathered:
        return self.by[self.odd[0]]

    def ranks_of(self) -> list[tuple[str, tuple[int, ...]]]:
        """By unit, the ranks that gathered it."""
        units = sorted({each.unit for each in self.by.values()})
        return [
            (unit, tuple(sorted(r for r, each in self.by.items() if each.unit == unit))) for unit in units
        ]


def differing_units(case: Case) -> DifferingUnits | None:
    """The earliest difference that the recorders still hold, among ranks that share the same units.

    Only within one pass and one thread: an additional forward, or a call of another thread in between, also shifts the
    numbers, for another reason.
    """
    sharing: dict[object, list[RankEvidence]] = {}
    for rank in case.cell.ranks:
        shared = tuple((unit.unit, unit.ranks) for unit in rank.units)
        if shared:
            sharing.setdefault(shared, []).append(rank)
    for ranks in sharing.values():
        gathered = {r.rank: {(g.group, g.number): g for g in _gathered(case, r.rank)} for r in ranks}
        first = next(iter(gathered.values()))
        for key in first if len(gathered) > 1 else ():
            by = {rank: each[key] for rank, each in gathered.items() if key in each}
            if len({g.unit for g in by.values()}) > 1:
                if len({g.began for g in by.values()}) > 1 or _another_counts(case, by):
                    break
                return _apart(case, by)
    return None


def _another_counts(case: Case, by: dict[int, Gathered]) -> bool:
    """Whether several threads of a rank issued the group's collectives between the start of the pass and this one."""
    asked = case.asked
    for rank, one in by.items():
        mine = asked[(asked["rank"] == rank) & (asked.group == case.groups.label(rank, one.group))]
        if mine[(mine.call >= one.began[1]) & (mine.call <= one.number)].thread.nunique() > 1:
            return True
    return False


def _gathered(case: Case, rank: int) -> Iterator[Gathered]:
    """The first collective of each unit that was gathered, in order, from the first pass whose start is recorded."""
    events = case.events
    mine = events[(events["rank"] == rank) & events.kind.isin((*PASSES, Kind.UNIT, Kind.COLLECTIVE))]
    unit, pass_, began = "", 0, (0, 0)
    for kind, phase, name, number, step, group in mine[["kind", "phase", "name", "a", "step", "group"]].itertuples(index=False):  # fmt: skip
        if kind in PASSES:
            pass_ = int(kind) if phase == Phase.BEGIN else pass_
        elif kind == Kind.UNIT:
            unit = name.removeprefix(GATHERS) if phase == Phase.BEGIN and name.startswith(GATHERS) else ""
        elif unit and phase == Phase.BEGIN and "all_gather" in name:
            began, pass_ = (pass_, int(number)) if pass_ else began, 0
            if began[0]:
                yield Gathered(group=group, number=int(number), unit=unit, step=int(step), began=began)
            unit = ""


def _apart(case: Case, by: dict[int, Gathered]) -> DifferingUnits:
    odd = outlier_ranks({rank: one.unit for rank, one in by.items()}, case.cell.weight)
    return DifferingUnits(by=by, odd=odd, place=_condition(case, by))


def _condition(case: Case, by: dict[int, Gathered]) -> Place | None:
    """The condition on which all units depend that one rank ran in that step and another did not."""
    ran = [{g.unit for g in _gathered(case, r) if g.step == each.step} for r, each in by.items()]
    left_out = sorted(set[str]().union(*ran) - ran[0].intersection(*ran[1:]))
    names = {u.unit: [p.name for p in u.parameters] for u in case.cell.rank(next(iter(by))).units}
    root = next((name for name in names if name.startswith(OF_FSDP2)), None)
    unused = [name for unit in left_out for name in names.get(unit, [])]
    if root is None or not unused:
        return None
    known = {name for each in names.values() for name in each}
    return branch_in(case.cell.code, root.removeprefix(OF_FSDP2), unused, known)
