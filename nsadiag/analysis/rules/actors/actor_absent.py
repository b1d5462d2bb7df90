"""A member of a torch group in which no call runs, or that never came to the group."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.stands import Stand
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph
from nsadiag.analysis.relations.actors.words import at, several
from nsadiag.analysis.rules.actors.parts import Root, by_roots, waits_within
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_absent(case: Case) -> Iterator[Draft | Declined]:
    yield from by_roots(case, _absent, _in_calls)


def _in_calls(_: ActorJob, graph: CallGraph) -> str:
    waits = [e for e in graph.edges if e.kind == "group"]
    idle = sum(node.state == "idle" for node in graph.nodes.values())
    return f"{len(waits)} waits for members of a torch group, and none is for one of the {idle} actors in which no call runs"


def _absent(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    return _of_nobody(job, graph, within) or _of_idle(job, graph, within)


def _of_nobody(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    """A group that is larger than the number of those who come to it."""
    edges = [e for e in waits_within(graph, within) if graph.nodes[e.waited_for].state == "absent"]
    waiter = graph.nodes[edges[0].waiter].stand if edges else None
    if waiter is None:
        return None
    node = graph.nodes[edges[0].waited_for]
    names = several([job.name(n) for n in node.come])
    return Root(
        cls="rendezvous_mismatch",
        guilty=node.come,
        keys=(node.key,),
        stand=waiter,
        waiter=waiter,
        named=node.come,
        says=f"the group of {node.size} that {names} create{'' if len(node.come) > 1 else 's'}{at(waiter.place)} lacks {node.size - len(node.come)}: no other of these processes stands in it, or is to come",
    )


def _of_idle(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    edges = [
        e
        for e in waits_within(graph, within)
        if e.kind == "group" and graph.nodes[e.waited_for].state == "idle"
    ]
    waiter = graph.nodes[edges[0].waiter].stand if edges else None
    if waiter is None:
        return None
    numbers = sorted({graph.nodes[e.waited_for].number for e in edges})
    waiting = sorted({graph.nodes[e.waiter].number for e in edges})
    names, who = several([job.name(n) for n in numbers]), several([job.name(n) for n in waiting])
    many = len(numbers) > 1
    caller = job.caller(waiter.task) if waiter.task else None
    stand = next((s for node in graph.nodes.values() if (s := node.stand) and s.number == caller), None)
    return Root(
        cls="rendezvous_mismatch" if waiter.doing == "rendezvous" else "missing_rank",
        guilty=tuple(numbers),
        keys=tuple(sorted({e.waited_for for e in edges})),
        stand=stand or waiter,
        waiter=waiter,
        named=(*numbers, *waiting),
        says=f"{names} {'are' if many else 'is'} in no call, while {who} wait{'' if len(waiting) > 1 else 's'} in {edges[0].what}{at(waiter.place)} for {'them' if many else 'it'}{_called(job, waiter, caller, who, names)}",
    )


def _called(job: ActorJob, waiter: Stand, caller: int | None, who: str, names: str) -> str:
    if caller is None or waiter.task is None:
        return ""
    return f"; {job.name(caller)} called {waiter.task.method}() of {who} and not of {names}"


RULE = Rule(
    concludes=("missing_rank", "rendezvous_mismatch"),
    about="actors",
    family="waiting",
    detected="In a job of Ray's or of several launchers: members of a torch group stand in a collective, or create the group, and in another member no call runs.",
    fix="Call the collective's method on every member, or leave the member out of the group.",
    check=actor_absent,
    explained_by=("actor_unschedulable", "actor_call_cycle"),
    confused_with=("actor_died", "actor_call_cycle"),
)
