"""Deadlocked ranks: a set of waiters that only other members of the set could wake.

The largest such set. A collective needs all its members, so one that never comes is enough (an AND-wait); a lock needs any
thread of its process, and a mutex the one that owns it. A rank that runs, sleeps, reads, waits with a limit, for the kernel
(many processes meet in a driver's lock) or for the world outside the job could still continue by itself: it is in no such set,
and neither is who waits for it alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Set
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.thread_state import ThreadState
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, RankEvidence
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.call_mismatch import in_black_boxes, in_recorders
from nsadiag.analysis.relations.pending import PendingCall, waits
from nsadiag.analysis.relations.wait_graph import Edge, Graph, graph_of
from nsadiag.evidence.blocking import (
    OF_ITS_PROCESS,
    Waker,
    by_frames,
    by_native,
    by_wchan,
    is_timer,
    mutex_address,
    serves_collectives,
)
from nsadiag.evidence.documents.kernel import KernelThread
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.phrases import are, these, waits_wait
from nsadiag.evidence.user_code import is_user

POLL_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """Ranks that will never continue."""

    waiting: tuple[int, ...]
    reason: str
    source: str


def deadlock_of(case: Case) -> Deadlock | None:
    """The deadlocked ranks; None where each rank that waits may yet be woken."""
    graph = case.once(graph_of)
    ended = {rank.rank for rank in case.cell.ranks if not was_alive(rank.end)}
    stopped = {rank for rank, at in case.thread_states.items() if at.doing == "stopped"} - ended
    locked = {
        rank.rank
        for rank in case.cell.ranks
        if _is_locked(case.cell, rank, case.thread_states.get(rank.rank))
    } - ended
    inert = ended | stopped
    graph = dataclasses.replace(graph, edges=(*graph.edges, *_for_inert(case, inert)))
    states = {r: at for r, at in case.thread_states.items() if r not in ended and not at.in_kernel}
    peers = {r for r, at in states.items() if at.waits_for_peers}
    in_backward = {r for r, at in states.items() if _waits_in_backward(at, graph)}
    waiting = frozenset(peers | in_backward | inert | locked)
    blocked = dataclasses.replace(graph, waiting=waiting, never=frozenset(inert | locked)).stuck
    if not blocked - inert and _all_disagree(case, graph, peers, inert):
        blocked = frozenset(peers | inert)
    waiting = blocked - inert
    if not waiting:
        return None
    return Deadlock(
        waiting=tuple(sorted(waiting)),
        reason=_reason(case.cell, waiting, locked, ended, stopped),
        source=f"{case.thread_states[min(waiting)].source}/py_spy.json",
    )


def _for_inert(case: Case, inert: set[int]) -> Iterator[Edge]:
    """Waits in collectives for members whose recorder nobody could read: issued or not, it takes part in none any more."""
    for wait in waits(case):
        for rank, peer in itertools.product(wait.waiting, sorted({*wait.unseen} & inert)):
            yield Edge(
                waiter=rank,
                waited_for=peer,
                what=f"{wait.collective(rank).op} #{wait.seq} of {wait.group}",
                source=wait.source(case.cell, rank),
            )


def _waits_in_backward(at: ThreadState, graph: Graph) -> bool:
    """Whether its main thread sleeps in a backward, with a collective under way that only the recorder shows."""
    return at.doing == "backward" and at.same and not at.running and at.rank in graph.waiters


def _all_disagree(case: Case, graph: Graph, peers: set[int], inert: set[int]) -> bool:
    """Whether no living rank does anything but wait for its peers, and what they wait in can never match."""
    living = set(range(case.cell.world_size)) - inert
    if not living or living - peers:
        return False
    if any([*in_recorders(case), *in_black_boxes(case)]):
        return True
    under_way = any(_is_under_way(wait, inert) for wait in waits(case))
    return not under_way and (bool(graph.edges) or bool(inert))


def _is_under_way(wait: PendingCall, inert: set[int]) -> bool:
    """Whether all its members are seen to have issued it, and live: a slow network may still complete it."""
    absent = wait.missing or wait.unseen
    return not absent and wait.calls["op"].nunique() == 1 and not {*wait.calls["rank"]} & inert


def _is_locked(cell: CellEvidence, rank: RankEvidence, at: ThreadState | None) -> bool:
    """Whether its main thread waits for another thread, without a limit, and no thread or child is left that could act."""
    if (
        at is None
        or at.doing not in OF_ITS_PROCESS
        or not at.same
        or at.in_kernel
        or _has_limit(cell, rank.rank)
    ):
        return False
    capture = [c for c in rank.captures if c.stacks][-1]
    children = [c for c in capture.proc.children if c.is_alive]
    if children or any(_may_act(thread, capture) for thread in capture.other_threads):
        return False
    return _waits_for_own_thread(rank, at, capture)


def _waits_for_own_thread(rank: RankEvidence, at: ThreadState, capture: CaptureEvidence) -> bool:
    """Whether the wait is certain to be for a thread of its own that cannot act.

    Frames of the standard library say so, or native ones. A bare futex is what anything native waits in, for threads that
    have no Python: under the user's own line it is a lock if no collective is open, which only the recording says.
    """
    main = capture.main_frames
    inner = [*itertools.takewhile(lambda f: not is_user(f.filename), main)]
    rows = (by_frames(inner), by_native(at.inner))
    if any(row is not None and row.state in OF_ITS_PROCESS for row in rows):
        return True
    python = {thread.os_thread_id for thread in capture.other_threads if thread.os_thread_id}
    if any(_acts_alone(row) for row in capture.proc.threads if row.tid not in (capture.proc.pid, *python)):
        return False
    if mutex_address(capture.proc.syscall, capture.proc.machine):
        owner = capture.proc.mutex_held_by
        return owner == capture.proc.pid or (at.owns_gil and owner in python)
    recorded = len(rank.recording.events) > 0
    return not inner and (at.owns_gil or recorded)


def _acts_alone(thread: KernelThread) -> bool:
    """Whether a thread without Python may do something that is no part of a collective."""
    if thread.state == "R":
        return True
    row = by_wchan(thread.wchan)
    waits = row is not None and row.waker == Waker.THREAD and not thread.waits_until_mono_ns
    return not waits and not serves_collectives(thread.name)


def _has_limit(cell: CellEvidence, rank: int) -> bool:
    last = cell.watch.last_look
    mine = last.of(rank) if last else None
    return mine is not None and mine.may_wake


def _may_act(thread: PythonThread, capture: CaptureEvidence) -> bool:
    """Whether a thread could still do something by itself: all but those that wait for other threads without a limit."""
    seen = next((row for row in capture.proc.threads if row.tid == thread.os_thread_id), None)
    if is_timer(thread.frames) or (seen and (seen.sleeps_until_mono_ns or seen.wait_limit_s)):
        return True
    if seen and _waits_long(seen, capture) and any(is_user(f.filename) for f in thread.frames):
        return True
    row = by_frames(thread.frames) or by_wchan(seen.wchan if seen else None)
    return row is None or bool(row.waker & ~Waker.THREAD)


def _waits_long(thread: KernelThread, capture: CaptureEvidence) -> bool:
    """Whether its wait ends at a time that is not about to come: one that polls asks again, and the interpreter lock is waited for in slices."""
    return (thread.waits_until_mono_ns or 0) - capture.proc.t_mono_ns > POLL_NS


def _reason(
    cell: CellEvidence, waiting: Set[int], locked: set[int], ended: set[int], stopped: set[int]
) -> str:
    causes = []
    if mine := cell.everyone(waiting & locked):
        causes.append(
            f"{these(mine)} {waits_wait(mine)} for threads of the same process, which all wait as well"
        )
    if gone := cell.everyone(ended):
        causes.append(f"{these(gone)} {'has' if len(gone) == 1 else 'have'} ended")
    if halted := cell.everyone(stopped):
        causes.append(f"{these(halted)} {are(halted)} stopped by a signal")
    peers = cell.everyone(waiting - locked)
    if len(peers) > 1 and not causes:
        causes.append(f"{these(peers)} wait for each other")
    elif peers:
        roots = cell.everyone((waiting & locked) | ended | stopped)
        causes.append(f"{these(peers)} {waits_wait(peers)} for {these(roots)}")
    return "; ".join(causes)
