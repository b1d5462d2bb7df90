"""Steadiness of a job that was cut off: whether it made iterations at its own rate until then, and what speaks against that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.pace import LONGEST_PAUSES, MIN_PAUSE_S, Pace, pace_of
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.relations.pending import is_still, is_suspended
from nsadiag.evidence.documents.captures import Communicator, NcclStatus
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import PeerWait

SOME_BYTES = 64 * 1024  # read or written between two snapshots; a thread that only listens has a few hundred
MANY_TIMES = 2.0  # of the longest wait before: from here on the ratio is worth a word

Counts = dict[tuple[str, int, str], int]  # by communicator, rank in it, and operation


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A fact that keeps one from calling a job healthy, and the file that shows it."""

    fact: str
    source: str


def damage(cell: CellEvidence) -> Doubt | None:
    """The first file of a rank that is missing or incomplete: what it held may be the failure."""
    return next(
        (
            Doubt(fact=f"{name} of rank {rank.rank} is missing or incomplete", source=f"{rank.source}/{name}")
            for rank in cell.ranks
            for name in rank.damaged
        ),
        None,
    )


def was_cut_off(cell: CellEvidence) -> bool:
    """Whether the job was ended, or looked at, while it ran, and did not stand still."""
    ended = cell.stopped in ("timeout", "interrupt") or cell.attached
    return ended and bool(cell.ranks) and not is_still(cell) and not is_suspended(cell)


def paces(case: Case) -> Mapping[int, Pace]:
    """By rank, of those that left a recording."""
    return {rank.rank: pace_of(case.cell, rank) for rank in case.cell.ranks if len(rank.recording.events)}


def furthest(case: Case) -> Pace | None:
    """The pace of the rank that made most iterations; steps of an optimizer count before those of a loop."""
    return max(case.once(paces).values(), key=lambda p: (p.unit == "step", p.done, -p.rank), default=None)


def longest_now(case: Case) -> PeerWait | None:
    """The rank that keeps its peers waiting at the end, longer than any rank ever did before."""
    waits = case.once(peer_waits)
    worst = next(iter(waits.ranked()), None)
    limit_s = max(MIN_PAUSE_S, LONGEST_PAUSES * waits.longest_s)
    return worst if worst and worst.now_s > limit_s else None


def doubt(case: Case) -> Doubt | None:
    """The fact that speaks against a steady rate; None where there is one.

    A rank that waits for another one is excused by it: who is waited for has to be steady.
    """
    if waited_for := longest_now(case):
        return Doubt(fact=kept_waiting(case, waited_for), source=waited_for.source or "watch.json#looks")
    waiting = {rank for wait in case.once(peer_waits).by_rank.values() for rank in wait.waiters}
    known = case.once(paces)
    free = [r for r in case.cell.ranks if r.rank not in waiting and r.rank in known and was_alive(r.end)]
    if not free:
        return Doubt(fact="no rank that could progress left a recorder", source="ends.json")
    if case.cell.absent:
        return Doubt(fact=f"rank {case.cell.names(case.cell.absent)} left no recorder", source="ends.json")
    if lost := damage(case.cell):
        return lost
    found = next(((r, why) for r in free if (why := known[r.rank].unsteady)), None)
    return Doubt(fact=found[1], source=f"{found[0].source}/blackbox.bin") if found else None


def moves(case: Case) -> str | None:
    """Motion in a job that was attached to and that nobody recorded, where no rank is known to keep the others waiting.

    A CPU that is used at one and the same line is no motion, and neither is a busy GPU among several: NCCL spins on both.
    """
    last = case.cell.watch.last_look
    if last is None or last.judgement not in ("progress", "busy", "asleep"):
        return None
    if not case.cell.attached or case.once(paces) or longest_now(case):
        return None
    if (found := case.once(launches)) is not None:
        return f"NCCL launched {found.since:,} collectives between the snapshots" if found.since else None
    alone = case.cell.world_size == 1
    moved = any(m.frames_changed or m.io_bytes >= SOME_BYTES or (alone and m.gpu_pct) for m in last.motions)
    return last.reason if moved or last.judgement != "busy" else None


def kept_waiting(case: Case, wait: PeerWait) -> str:
    """The sentence that says how long a rank has kept its peers waiting, against the job's own history, and where it is."""
    longest_s = case.once(peer_waits).longest_s
    times = wait.now_s / longest_s if longest_s > 0 else 0.0
    ratio = f", {times:,.0f} times the longest wait before" if times >= MANY_TIMES else ""
    at = f", at {locations.short(wait.at)}" if wait.at else ""
    whom = these(wait.waiters)
    return f"rank {wait.rank} has kept {whom} waiting for {wait.now_s:.0f} s{ratio}{at}"


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Two of NCCL's accounts of one job, compared: a kernel of its own that waits keeps GPU and CPU as busy as work does."""

    since: int  # collectives, on all ranks, between the two
    uneven: str | None  # a communicator whose members have launched different numbers, in words


def launches(case: Case) -> Launches | None:
    """The last two accounts; None where there are no two that tell of anything."""
    if len(case.cell.nccl) < 2:
        return None
    before, after = (_counts(status) for status in case.cell.nccl[-2:])
    if not before or not after:
        return None
    unequal = next((found for each in case.cell.nccl[-1].communicators if (found := _unequal(each))), None)
    return Launches(since=sum(max(n - before.get(key, 0), 0) for key, n in after.items()), uneven=unequal)


def _counts(status: NcclStatus) -> Counts:
    return {
        (each.hash, member.rank, op): count
        for each in status.communicators
        for member in each.ranks
        for op, count in (member.collective_counts or {}).items()
    }


def _unequal(communicator: Communicator) -> str | None:
    """The operation of which its members, if all of them told, have launched different numbers."""
    members = communicator.ranks
    if len(members) != communicator.size:
        return None
    for op in members[0].collective_counts or {} if members else ():
        counts = [(m.rank, (m.collective_counts or {}).get(op, 0)) for m in members]
        least, most = min(counts, key=lambda row: row[1]), max(counts, key=lambda row: row[1])
        if least[1] != most[1]:
            return f"member {most[0]} of {len(members)} has launched {most[1]:,} {op}, and member {least[0]} {least[1]:,}"
    return None
