"""Peer wait time: how long the peers of each rank have waited for it, all in all and now.

Of collectives that are called from Python by when each rank came to them, of a backward that reduces gradients by when
each had its own, and at the end of what was observed by the wait-for graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.collective_waits import (
    AT_LEAST_S,
    SLACK_S,
    CompletedWait,
    Participation,
    longest_blocked_s,
    participations_of,
    waits_in,
)
from nsadiag.analysis.facts.pace import seen_until_s
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.blocked import blocked_ranks
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.evidence.records import PeerWait
from nsadiag.evidence.table import Table

NOW_S = 1.0  # shorter is the moment at which the job was cut off


@dataclass(frozen=True, kw_only=True)
class PeerWaits:
    """By rank, those that kept anybody waiting; and the longest wait that was over, for whomever."""

    by_rank: Mapping[int, PeerWait]
    longest_s: float

    def ranked(self) -> tuple[PeerWait, ...]:
        """Those that are waited for now first, the longest first."""
        return tuple(sorted(self.by_rank.values(), key=lambda w: (-w.now_s, -w.total_s, w.rank)))


def _in_backward(steps: Table) -> Iterator[CompletedWait]:
    """By step: who had its gradients last, where the others were held up in the step until then."""
    ready: dict[int, list[tuple[float, int, float]]] = defaultdict(list)
    columns = (steps[name] for name in ("step", "ready_s", "rank", "end_s", "computed"))
    for step, ready_s, rank, end_s, computed in zip(*columns, strict=True):
        if computed:
            ready[int(step)].append((float(ready_s), int(rank), float(end_s)))
    for step, rows in ready.items():
        last_s, last, _ = max(rows)
        held = [(last_s - t, rank) for t, rank, end_s in rows if rank != last and end_s >= last_s - SLACK_S]
        longest_s = max((waited for waited, _ in held), default=0.0)
        if longest_s > AT_LEAST_S:
            waiters = tuple(sorted(rank for _, rank in held))
            yield CompletedWait(
                rank=last, for_s=longest_s, waiters=waiters, at_s=last_s, what=f"the backward of step {step}",
                lost_s=sum(waited for waited, _ in held),
            )  # fmt: skip


def completed_waits(case: Case) -> tuple[CompletedWait, ...]:
    """All waits of which the end was seen, in order of time."""
    reduces = sum(bool(rank.ddp or rank.units) for rank in case.cell.ranks) > 1
    found = [*waits_in(case.once(_participations)), *(_in_backward(case.steps) if reduces else ())]
    return tuple(sorted(found, key=lambda wait: wait.at_s))


def _participations(case: Case) -> tuple[Participation, ...]:
    found = (participations_of(rank, spans, case.groups.label) for rank, spans in case.call_spans.items())
    return tuple(one for ones in found for one in ones)


def peer_waits(case: Case) -> PeerWaits:
    """The waits of all ranks that left a recording."""
    found: dict[int, PeerWait] = {}
    for wait in case.once(completed_waits):
        before = found.get(wait.rank, _none_of(wait.rank))
        found[wait.rank] = replace(
            before,
            total_s=before.total_s + wait.for_s,
            longest_s=max(before.longest_s, wait.for_s),
            times=before.times + 1,
            lost_s=before.lost_s + wait.lost_s,
        )
    for rank, now in _now(case).items():
        before = found.get(rank, _none_of(rank))
        found[rank] = replace(
            now,
            total_s=before.total_s + now.now_s,
            longest_s=before.longest_s,
            times=before.times + 1,
            lost_s=before.lost_s + now.lost_s,
        )
    if any(rank.meta.memory.get("device_peak_kib") for rank in case.cell.ranks):
        found = {rank: replace(wait, on_gpus=True) for rank, wait in found.items()}
    # Where one ring has lost what its peers still have, how long those stood says as much.
    longest_s = max([longest_blocked_s(case.once(_participations)), *(w.longest_s for w in found.values())])
    return PeerWaits(by_rank=found, longest_s=longest_s)


def _none_of(rank: int) -> PeerWait:
    return PeerWait(rank=rank, total_s=0.0, now_s=0.0, longest_s=0.0, times=0)


def _now(case: Case) -> dict[int, PeerWait]:
    """By rank that is waited for as the observation ends, by those that wrote no event since they came."""
    if not (case.cell.stopped or case.cell.attached):
        return {}
    until_s, newest = seen_until_s(case.cell), _newest_s(case.cell)
    found: dict[int, PeerWait] = {}
    for waiter, rank, what, source in _waiting_now(case):
        now_s = until_s - newest.get(waiter, until_s)
        if now_s < NOW_S:
            continue
        before = found.get(rank, _none_of(rank))
        longer = now_s > before.now_s
        lost_s = before.lost_s + (0.0 if waiter in before.waiters else now_s)
        at = case.thread_states.get(rank)
        found[rank] = replace(
            before,
            now_s=max(now_s, before.now_s),
            lost_s=lost_s,
            waiters=tuple(sorted({waiter, *before.waiters})),
            what=what if longer else before.what,
            at=at.place if at else None,
            source=source if longer else before.source,
        )
    return found


def _waiting_now(case: Case) -> Iterator[tuple[int, int, str | None, str | None]]:
    """(waiter, waited for, in what, record): by the wait-for graph, and where it is silent by the stacks alone."""
    edges = case.once(graph_of).edges
    yield from ((edge.waiter, edge.waited_for, edge.what, edge.source) for edge in edges)
    for blocked in blocked_ranks(case) if not edges else ():
        for waiter in blocked.waiters:
            yield waiter, blocked.number, None, f"{case.thread_states[waiter].source}/py_spy.json"


def _newest_s(cell: CellEvidence) -> dict[int, float]:
    """By rank, the time of the last event of its main thread; of the newest before we began to end the job."""
    ending_s, found = cell.watch.ending_s, dict[int, float]()
    for rank in cell.ranks:
        events = rank.recording.events
        own = events[events["thread"] == (-1 if rank.recording.pid is None else rank.recording.pid)]
        times = [(t_ns - cell.started_mono_ns) / 1e9 for t_ns in own["t_ns"]]
        times = [t_s for t_s in times if ending_s is None or t_s <= ending_s]
        if times:
            found[rank.rank] = times[-1]
    return found
