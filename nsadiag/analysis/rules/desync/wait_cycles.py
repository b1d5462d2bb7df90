"""Ranks that wait for each other in different groups: each wait is correct on its own, but the cycle never ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidates.iteration_order import order_of
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.device_queue import first_unfinished, issued_s
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.relations.call_outliers import calls_begun
from nsadiag.analysis.relations.pending import waits
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.records import Place, Strength, Where

Call = tuple[str, str]  # group and call site


def cycle_finding(case: Case) -> Iterator[Draft]:
    """A cycle of ranks that all wait in collectives."""
    for cycle in case.once(graph_of).closed_cycles():
        if not case.thread_states:
            yield _by_calls(case, cycle)
            continue
        states = [case.thread_states[rank] for rank in cycle if rank in case.thread_states]
        if len(states) == len(cycle) and all(s.doing in ("collective", "backward") for s in states):
            yield _draft(case, cycle)


def _lines_of_step(case: Case, rank: int) -> list[Call]:
    """Groups and call sites of the rank since its last optimizer step, in order; the last one is current."""
    mine = calls_begun(case, rank, issued_s(case.cell, case.cell.rank(rank)))
    newest = mine[mine.step == mine.step.max()]
    return list(zip(newest.group, newest.site, strict=True))


def in_conflict(case: Case, cycle: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Ranks that take two of the cycle's lines in the less common order."""
    # Ranks beside the cycle show the usual order too.
    paths = {rank.rank: _lines_of_step(case, rank.rank) for rank in case.cell.ranks}
    lines = {paths[rank][-1] for rank in cycle if paths.get(rank)}
    few: set[int] = set()
    for a, b in combinations(sorted(lines), 2):
        first = {rank: line for rank, path in paths.items() if (line := _first(path, a, b))}
        few.update(minority(first))
    if guilty := tuple(sorted(few & set(cycle))):
        return guilty, "in another order than the others"
    return cycle, "in orders of which neither is more common"


def _first(path: list[Call], a: Call, b: Call) -> Call | None:
    return next((line for line in path if line in (a, b)), None)


def _draft(case: Case, cycle: tuple[int, ...]) -> Draft:
    guilty, why = in_conflict(case, cycle)
    blocked = tuple(sorted(set(cycle) - set(guilty)))
    graph = case.once(graph_of)
    edges = {e.waiter: e for e in graph.edges if e.waiter in cycle and e.waited_for in cycle}
    said = "; ".join(
        f"rank {r} waits for rank {e.waited_for} in {e.what}" for r, e in sorted(edges.items())[:5]
    )
    return Draft(
        strength=Strength.STRONG if blocked else Strength.LIKELY,
        summary=f"{named(case.cell, cycle).capitalize()} wait for each other in a cycle over several groups: {said}. {named(case.cell, guilty).capitalize()} {'issues' if len(guilty) == 1 else 'issue'} them {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        at=order_of(Context(case), cycle) or _queued(case, guilty[0]) or case.thread_states[guilty[0]].place,
        peers_at=case.thread_states[blocked[0]].place if blocked else None,
        evidence={
            f"rank {r} is in {e.what}, which rank {e.waited_for} never issued": e.source
            for r, e in [*edges.items()][:8]
        },
        fix="Issue the collectives of overlapping groups in one order on all ranks.",
    )


def _by_calls(case: Case, cycle: tuple[int, ...]) -> Draft:
    """The cycle of ranks of which no stack was taken: their dumps show in which group each of them waits."""
    held = [(w, tuple(r for r in w.waiting if r in cycle)) for w in waits(case)]
    held = [(wait, ranks) for wait, ranks in held if ranks]
    calls = [
        (wait, ranks, call_name(wait.collective(ranks[0]).op, wait.seq, wait.group)) for wait, ranks in held
    ]
    said = "; ".join(f"{named(case.cell, ranks)} in {call}" for _, ranks, call in calls)
    first, ranks, _ = calls[0]
    return Draft(
        strength=Strength.LIKELY,
        summary=f"Groups wait for each other in a cycle: {said}.",
        guilty_ranks=cycle,
        blocked_ranks=(),
        at=first.issued_at(case.cell, ranks[0]),
        where=Where(collective=first.collective(ranks[0])),
        evidence={
            f"{named(case.cell, own)} issued {call}, and it is not complete": wait.source(case.cell, own[0])
            for wait, own, call in calls
        },
        fix="Issue the collectives of overlapping groups in one order on all ranks.",
    )


def _queued(case: Case, rank: int) -> Place | None:
    """The line of its newest call, where the device has yet to run it."""
    lines = _lines_of_step(case, rank)
    return locations.of_text(lines[-1][1]) if lines and first_unfinished(case.cell.rank(rank)) else None
