"""Exceptions that did not end their rank, after which it continued without its part of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer, is_same
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.ring.blackbox import Kind, Phase

# In these a rank meets its peers: whoever leaves one early is out of step from there on.
SHARED = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Swallowed:
    """One that explains why its rank is not where its peers are."""

    rank: RankEvidence
    row: Raised
    line: int  # of raised.jsonl; 0 where leaving.json tells of it
    t_s: float
    why: str  # what ties it to the failure

    @property
    def source(self) -> str:
        return f"{self.rank.source}/" + (f"raised.jsonl#{self.line}" if self.line else "leaving.json")


def in_flight(case: Case) -> Swallowed | None:
    """The earliest exception on its way up, held back by a collective that its rank entered and never left."""
    waited_for = {edge.waited_for for edge in case.once(graph_of).edges}
    found = []
    for rank, line, row in _rows(case.cell):
        if row.how != "in flight" or not _is_open(case, rank, row):
            continue
        # Whoever waits where its peers do too is not the one that left them.
        if case.once(graph_of).edges and rank.rank not in waited_for:
            continue
        why = f"while that exception propagated, rank {rank.rank} entered {row.during} and never left it"
        found.append(_swallowed(case.cell, rank, line, row, why))
    return min(found, key=lambda s: s.t_s, default=None)


def _is_open(case: Case, rank: RankEvidence, row: Raised) -> bool:
    """Whether the collective that it was seen in has begun and not ended, or else the next that it met on its way up.

    Under NCCL a barrier is over for the host at once, and what comes after it in the same `finally` holds the rank.
    """
    mine = case.events_of(rank.rank)
    calls = mine[mine.kind.isin((Kind.COLLECTIVE, Kind.PROCESS_GROUP))]
    # Groups are counted as well, from one on.
    named = calls[(calls.name == row.during) & (calls.a == row.number)]
    same = named[named.group.str.startswith(row.group)]
    begun, ended = (bool((same.phase == phase).any()) for phase in (Phase.BEGIN, Phase.END))
    if not ended:
        return begun
    since = mine[mine.index > same.index[-1]]
    if since.kind.isin((Kind.FORWARD, Kind.BACKWARD, Kind.STEP)).any():
        return False
    later = calls[calls.index > same.index[-1]]
    return bool((later.phase == Phase.BEGIN).sum() > (later.phase == Phase.END).sum())


def peers_failed(cell: CellEvidence) -> bool:
    """Whether a rank swallowed that a peer was gone: then all may seem to have ended well."""
    return any(follows_a_peer(first_of(row)) for rank in cell.ranks for row in rank.raised)


def gone_on(case: Case) -> Swallowed | None:
    """The earliest that a rank swallowed, and whose steps it now lacks, or after which it did no more."""
    everywhere = _on_every_rank(case.cell)
    steps = _backwards(case)
    rows: dict[int, list[tuple[RankEvidence, int, Raised]]] = defaultdict(list)
    for rank, line, row in _rows(case.cell):
        if row.how != "in flight" and _key(row) not in everywhere and _is_cause(case.cell, rank, row):
            rows[rank.rank].append((rank, line, row))
    found = []
    for number, mine in rows.items():
        behind = max(steps.values(), default=0) - steps[number]
        for rank, line, row in mine:
            if why := _link(case, rank, row, behind, len(mine)):
                found.append(_swallowed(case.cell, rank, line, row, why))
                break
    return min(found, key=lambda s: s.t_s, default=None)


def _backwards(case: Case) -> dict[int, int]:
    """Each rank's number of backwards begun, or of steps: a peer that failed in one has begun it."""
    begun = case.begun(Kind.BACKWARD).groupby("rank").size()
    # The ring of a long run has lost its first ones: then steps alone count.
    short = all(int(rank.end.steps or 0) <= int(begun.get(rank.rank, 0)) for rank in case.cell.ranks)
    return {r.rank: int(begun.get(r.rank, 0) if short else r.end.steps or 0) for r in case.cell.ranks}


def _link(case: Case, rank: RankEvidence, row: Raised, behind: int, count: int) -> str | None:
    """The link that makes it the cause: the steps that are missing, or the silence since."""
    t_s = (row.t_mono_ns - case.cell.started_mono_ns) / 1e9
    stepped = int((case.events_of(rank.rank, Kind.STEP).t_s > t_s).sum())
    if row.how == "thread":
        waits = case.thread_states.get(rank.rank)
        if waits and waits.doing in ("queue", "lock", "pipe", "sleep", "unknown", "python"):
            return f"its thread {row.thread!r} died of it, and the main thread waits ({waits.doing})"
        return None
    waited_for = {edge.waited_for for edge in case.once(graph_of).edges}
    if stepped == 0 and (rank.rank in waited_for or has_left(rank)):
        return f"rank {rank.rank} completed no step after it"
    # One that is still there, steps later, stands there for another reason, unless it lacks what its peers wait in.
    if not has_left(rank) and rank.rank not in waited_for:
        return None
    if has_left(rank) and row.how == "left" and row.during in SHARED and behind >= 0:
        return f"rank {rank.rank} went on without its part of that step, which its peers did"
    if behind == count:
        return f"rank {rank.rank} went on, and ran {behind} backward pass{'es' if behind > 1 else ''} less than its peers"
    return None


def has_left(rank: RankEvidence) -> bool:
    """Whether it ended before anybody ended the job."""
    return rank.end.ended_itself


def _is_cause(cell: CellEvidence, rank: RankEvidence, row: Raised) -> bool:
    """Not the one that ended the rank, none that only says a peer is gone, and none after the first break."""
    ended_it = rank.exception and rank.exception.in_main_thread
    if ended_it and rank.exception and is_same(rank.exception, row):
        return False
    t_s = (row.t_mono_ns - cell.started_mono_ns) / 1e9
    ending_s = cell.watch.ending_s
    first = next((b.t_s for b in breaks(cell) if b.rank.rank != rank.rank), None)
    late = (ending_s is not None and t_s >= ending_s) or (first is not None and t_s > first)
    return not late and not follows_a_peer(first_of(row))


def _key(row: Raised) -> tuple[str, int, int]:
    return row.type, row.frames[-1].line if row.frames else 0, row.step


def _on_every_rank(cell: CellEvidence) -> set[tuple[str, int, int]]:
    """Exceptions that every rank met in the same step: these kept them together."""
    seen = [{_key(row) for row in rank.raised} for rank in cell.ranks]
    return set.intersection(*seen) if len(seen) > 1 else set()


def _rows(cell: CellEvidence) -> Iterator[tuple[RankEvidence, int, Raised]]:
    for rank in cell.ranks:
        for line, row in enumerate(rank.raised, start=1):
            yield rank, line, row
        left = rank.leaving
        if left and left.handling:
            steps = rank.end.steps or 0
            yield (
                rank,
                0,
                replace(
                    left.handling,
                    how="handled",
                    during=left.call,
                    place=left.place,
                    thread="MainThread",
                    step=steps,
                ),
            )


def _swallowed(cell: CellEvidence, rank: RankEvidence, line: int, row: Raised, why: str) -> Swallowed:
    t_s = (row.t_mono_ns - cell.started_mono_ns) / 1e9
    return Swallowed(rank=rank, row=row, line=line, t_s=t_s, why=why)
