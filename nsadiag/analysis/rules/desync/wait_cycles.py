"""Ranks that wait for each other in different groups: each wait is correct on its own, but the cycle never ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidates.iteration_order import order_of
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.device_queue import first_unfinished, issued_s
from nsadiag.analysis.facts.groups import shown
from nsadiag.analysis.facts.thread_state import ThreadState
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.blocked import user_threads
from nsadiag.analysis.relations.call_outliers import CALLS, took_new_turns
from nsadiag.analysis.relations.wait_graph import Graph, graph_of
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.source import loops

Call = tuple[str, str]  # group and call site


def closed_cycles(graph: Graph) -> list[tuple[int, ...]]:
    """Cycles whose ranks wait only for ranks that wait too, so that no rank outside can wake them."""
    roots = set(graph.roots())
    return [cycle for cycle in graph.cycles() if not any(graph.reached_from(r) & roots for r in cycle)]


def cycle_finding(case: Case) -> Iterator[Draft]:
    """A cycle of collectives, or of collectives and locks held by threads that wait in a collective."""
    for cycle in closed_cycles(case.once(graph_of)):
        stands = {rank: case.thread_states[rank] for rank in cycle if rank in case.thread_states}
        alone = {rank for rank, at in stands.items() if at.doing in ("collective", "backward")}
        held = {rank: why for rank in set(stands) - alone if (why := _held_up(case.cell, stands[rank]))}
        if alone and len(alone) + len(held) == len(cycle):
            yield _finding(case, cycle, held)


def _held_up(cell: CellEvidence, at: ThreadState) -> str | None:
    """The thread that holds the main thread's lock and waits in a collective itself, as a sentence."""
    wanted = loops.wanted(cell.code, at.place) if at.doing == "lock" and at.place else set()
    capture = next((c for c in reversed(cell.rank(at.rank).captures) if c.stacks), None)
    for thread, innermost in user_threads(capture) if wanted and capture else ():
        call = locations.call_in(thread.frames)
        outer = [locations.place(f.filename, f.line, f.name) for f in thread.frames]
        if call and at.place and any(wanted & loops.held(cell.code, frame) for frame in outer):
            return f"the main thread waits at {locations.short(at.place)} for a lock that thread {thread.thread_name} holds, which waits in {call} at {locations.short(innermost)}"
    return None


def _lines_of_step(case: Case, rank: int) -> list[Call]:
    """Groups and call sites of the rank since its last optimizer step, in order; the last one is current."""
    events = case.events
    mine = events[
        (events["rank"] == rank)
        & (events.phase == Phase.BEGIN)
        & ((events.group != "") | (events.site != ""))
    ]
    mine = mine[mine.kind.isin(CALLS) & (mine.t_s <= issued_s(case.cell, case.cell.rank(rank)))]
    newest = mine[mine.step == mine.step.max()]
    return list(zip(newest.group, newest.site, strict=True))


def in_conflict(case: Case, cycle: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Ranks that take two of the cycle's lines in the less common order."""
    # Ranks beside the cycle show the usual order too.
    paths = {rank.rank: _lines_of_step(case, rank.rank) for rank in case.cell.ranks}
    stands = {paths[rank][-1] for rank in cycle if paths.get(rank)}
    few: set[int] = set()
    even: set[int] = set()
    for a, b in combinations(sorted(stands), 2):
        first = {rank: _first(path, a, b) for rank, path in paths.items()}
        sides = [{r for r, line in first.items() if line == side} for side in (a, b)]
        if all(sides):
            fewer = min(sides, key=len)
            (few if len(sides[0]) != len(sides[1]) else even).update(
                fewer if len(sides[0]) != len(sides[1]) else sides[0] | sides[1]
            )
    few, even = few & {*cycle}, even & {*cycle}
    if few:
        return tuple(sorted(few)), "taking them in another order than the others"
    turned = took_new_turns(case, cycle)
    if 0 < len(turned) < len(cycle):
        return turned, "on a path that none of its ranks took before"
    return tuple(sorted(even)) or cycle, "no order is more common than the other"


def _first(path: list[Call], a: Call, b: Call) -> Call | None:
    return next((line for line in path if line in (a, b)), None)


def _orders(at: Place | None) -> Iterator[tuple[str, str]]:
    if at is not None:
        yield (
            f"all ranks are at one line, each with another group: {locations.short(at)} determines the order ({at.code})",
            "sources/index.json",
        )


def _finding(case: Case, cycle: tuple[int, ...], held: dict[int, str]) -> Draft:
    """`held`: by rank, why its main thread waits for a lock."""
    guilty, why = in_conflict(case, cycle)
    blocked = tuple(sorted(set(cycle) - set(guilty)))
    stands = {rank: case.thread_states[rank] for rank in cycle}
    edges = [e for e in case.once(graph_of).edges if e.waiter in cycle and e.waited_for in cycle]
    one = {e.waiter: e for e in edges}
    said = "; ".join(
        f"rank {r} waits for rank {e.waited_for} in {e.what}" for r, e in sorted(one.items())[:5]
    )
    said += "".join(f"; on rank {r} {what}" for r, what in sorted(held.items())[:2])
    lines = _lines_of_step(case, guilty[0])
    queued = (
        first_unfinished(case.cell.rank(guilty[0])) and locations.of_text(lines[-1][1]) if lines else None
    )
    ordered = order_of(Context(case), cycle)
    here = ordered or queued or stands[guilty[0]].place or locations.of_rank_now(case.cell.rank(guilty[0]))
    return Draft(
        strength=Strength.STRONG if blocked else Strength.LIKELY,
        summary=f"Ranks {shown(cycle)} wait for each other in a cycle over several groups: {said}. Rank {shown(guilty)}: {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(step=case.cell.rank(guilty[0]).end.steps).at(here),
        peers_at=stands[blocked[0]].place if blocked else None,
        evidence={
            **{
                f"rank {e.waiter} is in {e.what}, rank {e.waited_for} never issued it": e.source
                for e in list(one.values())[:8]
            },
            **dict(_orders(ordered)),
            **{
                f"on rank {r} {what}": f"{stands[r].source}/py_spy.json"
                for r, what in sorted(held.items())[:4]
            },
        },
        fix="Issue the collectives of overlapping groups in one order on all ranks."
        + (
            " Hold no lock during a collective: which thread gets it first differs between ranks; let one thread issue them all."
            if held
            else ""
        ),
    )
