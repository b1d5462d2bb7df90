"""Outliers among ranks that ask for different things in one call: the minority, or whoever does what it never did before."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import (
    MAJORITY,
    Behaviour,
    Criterion,
    CriterionTest,
    Outliers,
    outliers,
    which,
)
from nsadiag.analysis.relations.call_mismatch import Disagreement
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

CALLS = (Kind.COLLECTIVE, Kind.BACKWARD, Kind.FORWARD)
Visit = tuple[str, str, str]  # group, line, and what was asked for there
ARGUMENTS = ["op", "root", "tensors", "splits"]
RECORDED_ARGUMENTS = ["op", "input_sizes", "input_dtypes"]


@dataclass(frozen=True, kw_only=True)
class Asking(Behaviour):
    """A rank's arguments in the call on which it disagrees with others."""

    case: Case
    one: Disagreement
    rank: int

    @property
    def has_changed(self) -> bool:
        """Whether the rank called from this line before, and never so."""
        now, before = _earlier(self.case, self.rank, self.one)
        return now is not None and bool(before) and now not in before

    @property
    def path(self) -> list[Visit]:
        """Its calls, up to this one: it may have got further since."""
        return _path(self.case, self.rank, _begun(self.case, self.one, self.rank))

    @property
    def is_new_on_record(self) -> bool:
        """Whether its dump has the like of this call for the first time, though it has earlier calls of the group.

        Only where nothing but dumps was collected: recordings know the lines.
        """
        if self.case.cell.collected is None:
            return False
        calls = self.case.calls
        mine = calls[(calls["rank"] == self.rank) & (calls.group == self.one.group)]
        said = {seq: (op, str(sizes)) for seq, op, sizes in mine[["seq", "op", "input_sizes"]].itertuples()}
        earlier = {each for seq, each in said.items() if seq < self.one.call}
        return bool(earlier) and said.get(self.one.call) not in earlier

    @property
    def sets_up(self) -> bool:
        """Whether it raised within the constructor of what wraps a model."""
        raised = next((r.exception for r in self.case.cell.ranks if r.rank == self.rank), None)
        frames = raised.frames if raised else ()
        return any(f.function == "__init__" and SETUP.search(f.file) for f in frames)


Askings = Mapping[int, Asking]


def call_outliers(case: Case, one: Disagreement) -> Outliers:
    """Ranks that ask for something else than they should."""
    asking = {
        rank: Asking(
            now=asked.key,
            weight=case.cell.weight(rank) + one.alike.get(rank, 0),
            case=case,
            one=one,
            rank=rank,
        )
        for rank, asked in one.asked.items()
    }
    return outliers(asking, CRITERIA.get(one.kind, ARGUMENT_CRITERIA))


def _most_at_odds(asking: Askings) -> tuple[int, ...]:
    most = max(int(each.now[0]) for each in asking.values())
    return which(asking, lambda rank: int(asking[rank].now[0]) == most)


def _changed(asking: Askings) -> tuple[int, ...]:
    return which(asking, lambda rank: asking[rank].has_changed)


def _at_a_new_place(asking: Askings) -> tuple[int, ...]:
    return which(asking, lambda rank: _is_new([visit[:2] for visit in asking[rank].path]))


def _after_a_new_turn(asking: Askings) -> tuple[int, ...]:
    return which(asking, lambda rank: _is_new(list(itertools.pairwise(asking[rank].path))))


def _new_on_record(asking: Askings) -> tuple[int, ...]:
    return which(asking, lambda rank: asking[rank].is_new_on_record)


PATHS: tuple[CriterionTest[Askings], ...] = (
    (Criterion.NOVEL_PLACE, _at_a_new_place),
    (Criterion.NOVEL_TRANSITION, _after_a_new_turn),
    (Criterion.NOVEL, _new_on_record),
)
SETUP = re.compile(
    r"/torch/nn/parallel/distributed\.py$|/fully_sharded_data_parallel\.py$|/_composable/fsdp/|/fsdp/_fully_shard/|/runtime/engine\.py$"
)
LATE = 1000  # collectives of a group, from which on nobody sets up a model any more


def _setting_up(asking: Askings) -> tuple[int, ...]:
    """By the traceback of whoever raised: in the constructor of a wrapper, long after the group's first collectives."""
    return which(asking, lambda rank: asking[rank].one.call >= LATE and asking[rank].sets_up)


CRITERIA: dict[str, tuple[CriterionTest[Askings], ...]] = {
    "splits": ((Criterion.MOST_AT_ODDS, _most_at_odds),),
    "operation": (MAJORITY, *PATHS, (Criterion.SETTING_UP, _setting_up)),
}
ARGUMENT_CRITERIA: tuple[CriterionTest[Askings], ...] = (
    MAJORITY,
    (Criterion.NOVEL_ARGUMENTS, _changed),
    *PATHS,
)


def _begun(case: Case, one: Disagreement, rank: int) -> float:
    """The time at which the rank made the call; of one that only the recorder tells of, it is at the newest."""
    rows = case.asked[(case.asked["rank"] == rank) & (case.asked.group == one.group)]
    begun = rows.loc[rows.call == one.call, "begin_s"]
    return float("inf") if one.recorded or begun.empty or begun.isna().all() else float(begun.iloc[-1])


def calls_begun(case: Case, rank: int, until_s: float) -> Table:
    """Collectives and passes that the rank began by then, those of which nothing tells the group or the line left out."""
    mine = case.events_of(rank, *CALLS)
    known = (mine.group != "") | (mine.site != "")
    return mine[known & (mine.phase == Phase.BEGIN) & (mine.t_s <= until_s)]


def _path(case: Case, rank: int, until_s: float) -> list[Visit]:
    """Group, line and arguments of each call that the rank made, in order."""
    mine = calls_begun(case, rank, until_s)
    mine = mine[~mine.name.str.startswith("store.")]
    return list(zip(mine.group, mine.site, mine.detail, strict=True))


def _is_new(course: Sequence[Any]) -> bool:
    """Whether the last of it was never there before: the rank has left the common path."""
    return len(course) > 1 and course.count(course[-1]) == 1


def _earlier(case: Case, rank: int, one: Disagreement) -> tuple[tuple[Any, ...] | None, set[tuple[Any, ...]]]:
    """The rank's arguments now, and those that it gave before at this line."""
    rows, number, arguments = (
        (case.calls, "seq", RECORDED_ARGUMENTS) if one.recorded else (case.asked, "call", ARGUMENTS)
    )
    mine = rows[(rows["rank"] == rank) & (rows.group == one.group)]
    now = mine[mine[number] == one.call]
    if now.empty or not (place := now.iloc[-1].place):  # few dumps have lines
        return None, set()
    before = mine[(mine[number] < one.call) & (mine.place == place)]
    asked = {tuple(map(str, row)) for row in before[arguments].itertuples()}
    return tuple(str(now.iloc[-1][name]) for name in arguments), asked


def is_out_of_order(case: Case, one: Disagreement) -> bool:
    """Whether the ranks are at different calls of the program, and do not only ask otherwise in the same one."""
    if one.kind == "operation":
        return True
    if one.kind == "size" and case.cell.collected is not None and len(one.places) < MOST_PLACES:
        return _are_of_other_calls(one)
    if len(one.places) > 1:
        return not _are_partners(case, one)
    known = [_earlier(case, rank, one) for rank in one.asked]
    # From this line everyone has issued both before: a loop over what is ordered otherwise.
    return all(now is not None and all(other in before for other, _ in known) for now, before in known)


MOST_PLACES = 2  # from which on lines tell more than sizes
FAR = 2  # times as many elements: what a ragged batch or a wrong shape makes of a size is nearer


def _are_of_other_calls(one: Disagreement) -> bool:
    """Whether sizes tell of different calls of the program, where no line does: a flag or barrier beside data, another shard or bucket."""
    sizes = [math.prod(size) for asked in one.asked.values() for size in (asked.sizes or [])[:1]]
    if len(sizes) < 2 or min(sizes) < 1:
        return False
    return min(sizes) == 1 or max(sizes) >= FAR * min(sizes)


def _are_partners(case: Case, one: Disagreement) -> bool:
    """Whether calls from these lines belong together: a root has a line of its own in much code."""
    op = next(iter(one.asked.values())).op
    rooted = op.startswith(("broadcast", "scatter", "gather", "reduce")) and not op.startswith(
        "reduce_scatter"
    )
    now = {rank: place for rank, place in _places_at(case, one, one.call).items() if place}
    if len(now) < len(one.asked):
        return False
    rows = case.asked[(case.asked.group == one.group) & (case.asked.call < one.call)]
    before: dict[int, dict[int, str]] = defaultdict(dict)
    for call, rank, place in rows[["call", "rank", "place"]].itertuples():
        before[call][rank] = place
    if now in before.values():
        return True
    visited = {rank: set(rows[rows["rank"] == rank].place) for rank in now}
    shared = all(place in visited[rank] for rank in now for place in now.values())
    return rooted and not shared


def _places_at(case: Case, one: Disagreement, call: int) -> dict[int, str]:
    rows = case.asked[(case.asked.group == one.group) & (case.asked.call == call)]
    return {int(rank): str(place) for rank, place in rows[["rank", "place"]].itertuples()}
