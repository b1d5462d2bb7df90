"""A call that waits for a lock, event or queue of its own process."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph
from nsadiag.analysis.relations.actors.words import DOING, standing
from nsadiag.analysis.rules.actors.parts import Root, by_roots, most_waited_for, waiter_in
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_locked(case: Case) -> Iterator[Draft | Declined]:
    yield from by_roots(case, _locked, _stands)


def _stands(job: ActorJob, graph: CallGraph) -> str:
    stands = [node.stand for node in graph.nodes.values() if node.stand]
    said = "; ".join(f"{standing(job, s)} ({s.doing})" for s in stands[:4])
    return f"no call that others wait for is in a lock or queue of its own process: {said or 'no call runs'}"


def _locked(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    keys = {
        key for key in within
        if (node := graph.nodes[key]).is_locked and (s := node.stand) and not graph.out.get(key)
        # A call that nobody waits for may be a server's, for as long as the job lasts.
        if (s.task and s.task.kind == "DRIVER_TASK") or key in graph.asked
    }  # fmt: skip
    if not keys:
        return None
    key = most_waited_for(graph, keys)
    stand = graph.nodes[key].stand
    assert stand is not None
    waiting = [edge for edge in graph.edges if edge.waited_for == key]
    waiter = waiter_in(graph, waiting)
    return Root(
        guilty=(stand.number,),
        keys=(key,),
        # A manager's thread stands in no line of the user's: its client does.
        stand=stand if stand.place else waiter,
        waiter=waiter,
        says=f"{standing(job, stand)}{' and' if stand.place else ''} waits for {DOING[stand.doing]}",
    )


RULE = Rule(
    concludes=("local_lock_deadlock",),
    about="actors",
    family="blocked",
    detected="In a job of Ray's or of several launchers: the call waits for a lock, event or queue, and no thread or child of its process is left that could give it.",
    fix="Find who should release the lock or fill the queue: the stacks of all threads of that process show where each stands.",
    check=actor_locked,
    confused_with=("actor_call_cycle", "external_wait"),
)
