"""Calls that wait for each other in a cycle."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.stands import PEERS
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph, CallWait
from nsadiag.analysis.relations.actors.words import chain, several
from nsadiag.analysis.rules.actors.parts import Root, by_roots
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_call_cycle(case: Case) -> Iterator[Draft | Declined]:
    yield from by_roots(
        case,
        _cycle,
        lambda job, graph: (
            f"none of the {len(graph.edges)} waits of {len(graph.waiters)} calls leads back to itself"
        ),
    )


def _cycle(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    ways = (way for key in sorted(within & graph.asked) if (way := graph.cycle(key)))
    cycles = [way for way in ways if within.issuperset(way)]
    if not cycles:
        return None
    # Of several alike that of main threads: what these do is a program's course.
    way = min(
        cycles, key=lambda way: (len(way), -sum(bool((s := graph.nodes[k].stand) and s.first) for k in way))
    )
    edges = [
        next(e for e in graph.out[key] if e.waited_for == following)
        for key, following in zip(way, [*way[1:], way[0]], strict=True)
    ]
    guilty = _broke_the_order(graph, edges) or [graph.nodes[key].number for key in way]
    stands = [s for key in way if (s := graph.nodes[key].stand) and s.place]
    stand = next((s for s in stands if s.number in guilty), None)
    numbers = tuple(dict.fromkeys(graph.nodes[key].number for key in way))
    who = f"{job.name(numbers[0])} waits for itself"
    if len(numbers) > 1:
        who = f"{several([job.name(n) for n in numbers])} wait for each other"
    return Root(
        guilty=tuple(sorted({*guilty})),
        keys=tuple(way),
        says=f"{who}: {chain(job, graph, edges)}",
        stand=stand,
        waiter=next((s for s in stands if s is not stand), None),
        named=numbers,
    )


def _broke_the_order(graph: CallGraph, edges: list[CallWait]) -> list[int]:
    """Members that stand outside the collective in which the others of the cycle wait; else, who holds what is waited for."""
    absent = [
        graph.nodes[e.waited_for].number
        for e in edges
        if e.kind == "group" and not ((s := graph.nodes[e.waited_for].stand) and s.doing in PEERS)
    ]
    return absent or [graph.nodes[e.waited_for].number for e in edges if e.kind == "coordinator"]


RULE = Rule(
    means={
        "actor_call_cycle": "Calls of Ray's actors, or roles of a job of several launchers, wait for each other in a cycle."
    },
    about="actors",
    family="waiting",
    detected="In the wait-for graph over calls, queues of actors, torch groups and coordinating actors, or over the threads of all roles, a way leads back to where it began.",
    fix="Let one of them go on without the other: return before the wait, or take both sides in one order.",
    check=actor_call_cycle,
    confused_with=("local_lock_deadlock", "missing_rank", "actor_died"),
)
