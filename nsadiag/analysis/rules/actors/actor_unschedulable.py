"""An actor or call for which the cluster has no room."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ALIVE, ActorJob
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph
from nsadiag.analysis.relations.actors.words import several
from nsadiag.analysis.rules.actors.parts import Root, by_roots, waits_within
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_unschedulable(case: Case) -> Iterator[Draft | Declined]:
    yield from by_roots(case, _unplaced, _placed)


def _placed(job: ActorJob, _: CallGraph) -> str:
    alive = sum(actor.state == ALIVE for actor in job.actors.values())
    return f"{alive} of {len(job.actors)} actors are placed, and no call waits for room"


def _unplaced(job: ActorJob, graph: CallGraph, within: frozenset[str]) -> Root | None:
    waits = waits_within(graph, within)
    edge = next((e for e in waits if graph.nodes[e.waited_for].state == "unplaced"), None)
    if edge is None:
        return None
    node = graph.nodes[edge.waited_for]
    actor = next((a for a in job.actors.values() if job.number_of_actor[a.id] == node.number), None)
    needs = (actor.needs if actor else edge.task.needs if edge.task else None) or {}
    wanted = ", ".join(f"{value:g} {name}" for name, value in sorted(needs.items())) or "a place"
    name = job.name(node.number) if actor else f"call {edge.what}"
    waiter = graph.nodes[edge.waiter].stand
    return Root(
        guilty=(node.number,) if actor else (graph.nodes[edge.waiter].number,),
        keys=(edge.waited_for,),
        stand=waiter,
        waiter=waiter,
        says=f"{name} was never started: it needs {wanted}, and {_room(job, needs)}",
        named=(node.number,),
        facts=(f"{name} needs {wanted}; {_room(job, needs)}",),
    )


def _room(job: ActorJob, needs: dict[str, float]) -> str:
    """The reason for the lack of room: no machine is large enough, or who holds it."""
    rooms = [node.resources or {} for node in job.ray.nodes if node.alive]
    if not any(all(room.get(name, 0) >= value for name, value in needs.items()) for room in rooms):
        most = ", ".join(f"{max((r.get(n, 0) for r in rooms), default=0):g} {n}" for n in sorted(needs))
        return f"no machine of the cluster has more than {most}"
    mine = [a for a in job.actors.values() if a.state == ALIVE and {*(a.needs or {})} & {*needs}]
    theirs = [r for r in job.ray.rivals if {*(r.needs or {})} & {*needs}]
    held = [job.name(job.number_of_actor[a.id]) for a in mine]
    held += [
        f"{r.name or r.cls} of job {r.job}" + (f" ({r.entrypoint[:50]})" if r.entrypoint else "")
        for r in theirs
    ]
    return (
        f"{several(held)} hold{'s' if len(held) == 1 else ''} what there is"
        if held
        else "nothing of that is free"
    )


RULE = Rule(
    means={"actor_unschedulable": "The Ray cluster has no room for an actor or call that others wait for."},
    about="actors",
    family="waiting",
    detected="An actor or call was never placed, since no machine has what it needs, or others hold it; and a call waits for it.",
    fix="Ask for less, end what holds the resources, or add a node.",
    check=actor_unschedulable,
    explained_by=("actor_call_cycle",),
    confused_with=("actor_died", "actor_call_cycle"),
)
