"""A call that met another one of its peers, by what its rank received: the transport refused it, or passed it on and the rank failed on it.

NCCL compares nothing, and gloo only sizes. What a wrapper then reads may be no size, no pickle, and no shape of a parameter.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.exits import first_break, says_mismatch
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.call_mismatch import in_black_boxes
from nsadiag.analysis.relations.call_outliers import is_out_of_order
from nsadiag.analysis.relations.replication import DEFAULT
from nsadiag.analysis.relations.timeline import COMPARED, TimelineEvent, Timelines
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_user

# Modules of torch that make calls to other ranks and read what they answer. Those in folders below, such as checkpoints, do more.
EXCHANGES = re.compile(r"/torch/(distributed/[^/]+|nn/parallel/distributed)\.py$")


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The call that a rank had come to."""

    what: str
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class OtherMessage:
    """A message that a rank did not expect, in a call that other ranks did not make at that point."""

    rank: int
    calls: dict[int, Reached]
    guilty: tuple[int, ...]  # all if undecided


def is_in_an_exchange(exception: Cause) -> bool:
    """Whether torch raised it in a call to other ranks: what it read there may not be what they sent for it."""
    files = [frame.file for frame in exception.frames]
    return bool(files) and EXCHANGES.search(files[-1]) is not None and any(map(is_user, files))


def misled(case: Case) -> RankEvidence | None:
    """The rank that failed first, where it did so in a call that its peers did not make at that point; its exception is a consequence."""
    return case.once(_misled)


def _misled(case: Case) -> RankEvidence | None:
    first = first_break(case.cell)
    exception = first.rank.exception if first and first.kind == "exception" else None
    if first is None or exception is None or not is_in_an_exchange(first_of(exception)):
        return None
    rank = first.rank
    if says_mismatch(rank):
        return None  # the transport refused it, and says so
    met = _met_by_number(case, rank) or _met_in_time(case.cell, rank) or _met_unnumbered(case, rank)
    return rank if met else None


def _met_by_number(case: Case, rank: RankEvidence) -> bool:
    """Whether its last call of a group has another one of its peers under the same number."""
    asked = case.asked[case.asked["rank"] == rank.rank]
    last = asked.groupby("group").call.max()
    return any(
        rank.rank in one.asked and last[one.group] == one.call and is_out_of_order(case, one)
        for one in in_black_boxes(case)
    )


def _met_in_time(cell: CellEvidence, rank: RankEvidence) -> bool:
    """Whether its peers were in another call after the same history: what a wrapper in C++ issues has no number."""
    found = met_otherwise(cell, rank.rank)
    place = place_of(first_of(rank.exception)) if rank.exception else None
    mine = found.calls[rank.rank].place if found else None
    return bool(mine and place and (mine.file, mine.line) == (place.file, place.line))


def _met_unnumbered(case: Case, rank: RankEvidence) -> bool:
    """Whether a peer had made a call from Python elsewhere, and it none yet: the constructor of a wrapper compares models in C++."""
    rows = case.asked[case.asked.group == DEFAULT]
    first, place = first_break(case.cell), place_of(first_of(rank.exception)) if rank.exception else None
    if first is None or place is None or rank.rank in set(rows["rank"]):
        return False
    before = rows[rows.begin_s < first.t_s]
    places = [locations.of_text(text) for text in before.place]
    return any(at and (at.file, at.line) != (place.file, place.line) for at in places)


def met_otherwise(cell: CellEvidence, said: int) -> OtherMessage | None:
    """The last call of the rank, where others were at another one after the same history; None where the calls were alike."""
    done = {
        rank: [event for iteration in iterations for event in iteration if event.kind in COMPARED]
        for rank, iterations in Timelines(cell.ranks).iterations_of_all.items()
    }
    if not done.get(said):
        return None
    # The rank made no call afterwards: the calls are counted from the last common one.
    last = len(done[said]) - 1
    calls = {rank: events[last] for rank, events in done.items() if len(events) > last}
    now = {rank: _key(event) for rank, event in calls.items()}
    before = {tuple(map(_key, done[rank][:last])) for rank in calls}
    if len(before) > 1 or len(set(now.values())) < 2:
        return None
    novel = tuple(rank for rank in sorted(calls) if _is_new(done[rank][: last + 1]))
    return OtherMessage(
        rank=said,
        calls={rank: Reached(what=c.name or "backward", place=c.place) for rank, c in calls.items()},
        guilty=minority(now, cell.weight) or novel or tuple(sorted(calls)),
    )


def _key(event: TimelineEvent) -> tuple[int, str, str]:
    return event.kind, event.name, event.at


def _is_new(events: list[TimelineEvent]) -> bool:
    """Whether the rank never made that call after the preceding one before."""
    turns = list(itertools.pairwise(map(_key, events)))
    return len(turns) > 1 and turns.count(turns[-1]) == 1
