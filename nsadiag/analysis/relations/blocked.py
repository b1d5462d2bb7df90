"""Ranks that are blocked within their own process while their peers wait for them."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.thread_state import ThreadState
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, RankEvidence
from nsadiag.analysis.relations.pending import is_still, waits
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.evidence.documents.kernel import KernelChild
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.documents.watch import End
from nsadiag.evidence.records import Collective, Place
from nsadiag.evidence.user_code import is_user


@dataclass(frozen=True, kw_only=True)
class BlockedRank:
    """A living rank that waits for no peer, and where it stands."""

    rank: RankEvidence
    state: ThreadState
    capture: CaptureEvidence  # the last that shows a stack
    waiters: tuple[int, ...]  # ranks that wait for it, directly or through others
    waited: tuple[str, str] | None  # what one of them waits in, and the record that shows it
    collective: Collective | None

    @property
    def number(self) -> int:
        return self.rank.rank

    @property
    def source(self) -> str:
        """The file with its stacks."""
        return f"{self.capture.source}/py_spy.json"


def hung_ranks(case: Case) -> list[BlockedRank]:
    """Ranks of a job in which nothing moves that peers wait for and that wait for none; where nobody waits, all such.

    Without those that have nothing to do, if another one hangs beside them.
    """
    found = blocked_ranks(case) if is_still(case.cell) else []
    return [blocked for blocked in found if not may_be_idle(case.cell, blocked)] or found


def may_be_idle(cell: CellEvidence, blocked: BlockedRank) -> bool:
    """Whether it asks again and again, with a time limit, for work that somebody may still bring, and nobody waits for it."""
    last = cell.watch.last_look
    moved = last.of(blocked.number) if last else None
    return not blocked.waiters and moved is not None and bool(moved.idle)


def blocked_ranks(case: Case) -> list[BlockedRank]:
    """The same, whether or not the job was called still."""
    graph = case.once(graph_of)
    roots = graph.roots() or tuple(
        r for r, s in case.thread_states.items() if not _waits(s) and r not in graph.waiters
    )
    found = []
    for number in (*roots, *_alike(case, roots)):
        state = case.thread_states.get(number)
        rank = next((r for r in case.cell.ranks if r.rank == number), None)
        if rank is None or state is None or not was_alive(rank.end):
            continue
        waiters = tuple(sorted(r for r in graph.waiters if number in graph.reached_from(r)))
        edge = next((e for e in graph.edges if e.waited_for == number), None)
        found.append(
            BlockedRank(
                rank=rank,
                state=state,
                capture=[c for c in rank.captures if c.stacks][-1],
                waiters=waiters or _by_stacks(case, number),
                waited=(f"rank {edge.waiter} waits for rank {number} in {edge.what}", edge.source)
                if edge
                else None,
                collective=_collective(case, number),
            )
        )
    return found


def _alike(case: Case, roots: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that nobody waits for yet, and that stand where one of these does."""
    states, graph = case.thread_states, case.once(graph_of)
    places = {states[r].place for r in roots if r in states} - {None}
    others = {r for r, s in states.items() if s.place in places and not _waits(s)}
    return tuple(sorted(others - {*roots} - graph.waiters))


def _waits(state: ThreadState) -> bool:
    return state.doing in ("collective", "transfer", "backward", "rendezvous") and not state.destroys_groups


def _by_stacks(case: Case, number: int) -> tuple[int, ...]:
    return tuple(
        r
        for r, s in sorted(case.thread_states.items())
        if r != number and _waits(s) and was_alive(case.cell.rank(r).end)
    )


def _collective(case: Case, number: int) -> Collective | None:
    for wait in waits(case):
        if number in wait.missing and wait.waiting:
            return wait.collective(wait.waiting[0])
    return None


def was_alive(end: End) -> bool:
    """Whether it ran when it was looked at; a rank that was left running has no end."""
    return not end.ended_itself


def living_children(blocked: BlockedRank) -> list[KernelChild]:
    """Processes that the rank has started and that have not ended."""
    return [c for c in blocked.capture.proc.children if c.is_alive]


def user_threads(capture: CaptureEvidence) -> list[tuple[PythonThread, Place]]:
    """Threads beside the main one that run the user's code, each with its innermost line of it."""
    found = []
    for thread in capture.other_threads:
        at = next((f for f in thread.frames if is_user(f.filename)), None)
        if at:
            found.append((thread, locations.place(at.filename, at.line, at.name)))
    return found
