"""An actor that is dead, and that others still wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph
from nsadiag.analysis.relations.actors.words import chain
from nsadiag.analysis.rules.actors.parts import Root, by_roots, most_waited_for, waiter_in, waits_within
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_died(case: Case) -> Iterator[Draft | Declined]:
    yield from by_roots(case, _dead, _states)


def _states(job: ActorJob, _: CallGraph) -> str:
    counts = Counter(actor.state for actor in job.actors.values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    return f"no dead actor is waited for: of {len(job.actors)} actors {states}"


def _dead(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    waits = waits_within(graph, within)
    keys = {edge.waited_for for edge in waits if graph.nodes[edge.waited_for].state == "dead"}
    if not keys:
        return None
    key = most_waited_for(graph, keys)
    number = graph.nodes[key].number
    actor = next(a for a in job.actors.values() if job.number_of_actor[a.id] == number)
    edges = [edge for edge in waits if edge.waited_for == key]
    death = (actor.death.splitlines() or ["Ray does not say why"])[0].partition(" Some common causes")[0]
    death = death.removeprefix("The actor is dead because ")
    return Root(
        guilty=(number,),
        keys=(key,),
        waiter=waiter_in(graph, edges),
        says=f"{job.name(number)} is dead ({death.rstrip('.')}), and {chain(job, graph, edges[:1])}",
        named=(number, *(graph.nodes[e.waiter].number for e in edges[:1])),
        facts=(f"{job.name(number)} is DEAD: {death}",),
    )


RULE = Rule(
    means={"actor_died": "An actor of Ray's is dead, and others still wait for it."},
    about="actors",
    family="exit",
    detected="Ray calls the actor DEAD, and a call waits for one of its calls, or in a group of which it was a member.",
    fix="Have whoever waits learn of it: keep a reference of a call to each actor and pass it to ray.wait, or set a timeout of the group.",
    check=actor_died,
    confused_with=("missing_rank", "actor_call_cycle"),
)
