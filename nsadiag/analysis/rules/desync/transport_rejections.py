"""A call by a wrapper in C++ that met another one: it has no number in the recorder, and the transport names no reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import breaks, says_mismatch
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.call_mismatch import in_black_boxes
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.relations.timeline import COMPARED, TimelineEvent, Timelines
from nsadiag.analysis.rules.drafts import at_line, named, recorded
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Place, Strength


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The call that a rank had come to."""

    what: str
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class RejectedMessage:
    """A message that a rank did not expect, in a call that other ranks did not make at that point."""

    rank: int
    calls: dict[int, Reached]
    guilty: tuple[int, ...]  # all if undecided


def collective_order_refused(case: Case) -> Iterator[Draft | Declined]:
    found = None if is_still(case.cell) else rejection(case.cell) or swapped_calls(case)
    if found is None:
        yield Declined(f"the transport of {everyone(case.cell)} rejected no message for its size")
        return
    peers = tuple(sorted(set(found.calls) - set(found.guilty)))
    reached = {r: f"{c.what}{at_line(c.place)}" for r, c in sorted(found.calls.items())}
    calls = "; ".join(f"rank {rank}: {what}" for rank, what in [*reached.items()][:6])
    who = (
        f"{named(case.cell, found.guilty)} left the common path"
        if peers
        else "it is unknown which is intended"
    )
    rank = case.cell.rank(found.rank)
    rejected = f"rank {found.rank} received a message of another size than it expected"
    yield Draft(
        outcome="crashed",
        strength=Strength.LIKELY if peers else Strength.GUESS,
        summary=f"The ranks disagree on the next collective ({calls}), and the transport rejected what rank {found.rank} received; {who}.",
        guilty_ranks=found.guilty,
        blocked_ranks=peers,
        at=found.calls[found.guilty[0]].place,
        peers_at=found.calls[peers[0]].place if peers else None,
        evidence={
            **recorded(case.cell, {r: f"reached {what}" for r, what in [*reached.items()][:8]}),
            rejected: f"{rank.source}/{'exception.json' if rank.exception else 'stderr.log'}",
        },
    )


def rejection(cell: CellEvidence) -> RejectedMessage | None:
    """The rejection; None if no rank reported one, or if the reporting rank's call was the same as the others'."""
    said = _rejecting(cell)
    done = {
        rank: [event for iteration in iterations for event in iteration if event.kind in COMPARED]
        for rank, iterations in Timelines(cell.ranks).iterations_of_all.items()
    }
    if said is None or not done.get(said):
        return None
    # The rank that reported it made no call afterwards: the calls are counted from the last common one.
    last = len(done[said]) - 1
    calls = {rank: events[last] for rank, events in done.items() if len(events) > last}
    now = {rank: _key(event) for rank, event in calls.items()}
    before = {tuple(map(_key, done[rank][:last])) for rank in calls}
    if len(before) > 1 or len(set(now.values())) < 2:
        return None
    novel = tuple(rank for rank in sorted(calls) if _is_new(done[rank][: last + 1]))
    return RejectedMessage(
        rank=said,
        calls={rank: Reached(what=c.name or "backward", place=c.place) for rank, c in calls.items()},
        guilty=minority(now, cell.weight) or novel or tuple(sorted(calls)),
    )


def swapped_calls(case: Case) -> RejectedMessage | None:
    """The same of calls that all ranks make, in another order: threads that share a group may issue them so."""
    said = _rejecting(case.cell)
    if said is None:
        return None
    for one in in_black_boxes(case):
        if said in one.asked and is_out_of_order(case, one):
            return RejectedMessage(
                rank=said,
                calls={
                    rank: Reached(what=asked.what, place=asked.place) for rank, asked in one.asked.items()
                },
                guilty=call_outliers(case, one).ranks,
            )
    return None


def _rejecting(cell: CellEvidence) -> int | None:
    return next((b.rank.rank for b in breaks(cell) if says_mismatch(b.rank)), None)


def _key(event: TimelineEvent) -> tuple[int, str, str]:
    return event.kind, event.name, event.at


def _is_new(events: list[TimelineEvent]) -> bool:
    """Whether the rank never made that call after the preceding one before."""
    turns = list(itertools.pairwise(map(_key, events)))
    return len(turns) > 1 and turns.count(turns[-1]) == 1


RULE = Rule(
    concludes=("collective_order_mismatch",),
    family="waiting",
    detected="In a crash: after a common history the ranks reached different calls, and the transport rejected what one of them received. It decides where a call was issued by a wrapper in C++, so that it has no number, and the source does not explain the divergence.",
    fix="Make all ranks issue the same collectives in the same order: iterate in an order that all ranks share (sorted keys), let no collective depend on one rank's data, and give each thread that issues collectives a group of its own.",
    check=collective_order_refused,
    cause_in_source=True,
    needs=("black_boxes",),
    explained_by=("collective_order_mismatch",),
    confused_with=(
        "collective_args_mismatch",
        "data_divergent_control_flow",
        "missing_rank",
        "rank_exception",
        "rank_killed",
    ),
)
