"""The root of a hang: the node, or the circle, of a wait-for graph that all others wait for in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from nsadiag.analysis.actors.graph import Edge, WaitGraph
from nsadiag.analysis.actors.job import ActorJob
from nsadiag.analysis.actors.stands import PEERS, Stand
from nsadiag.analysis.actors.words import DOING, at, chain, several, standing, waits_for


@dataclass(frozen=True, kw_only=True)
class Root:
    """The actors that hold the job up, and in what way."""

    cls: str
    guilty: tuple[int, ...]
    keys: tuple[str, ...]  # its nodes in the graph
    says: str
    stand: Stand | None = None  # where it stands
    waiter: Stand | None = None  # one that waits for it
    named: tuple[int, ...] = ()  # of whom the sentence speaks
    facts: tuple[str, ...] = field(default=())
    fix: str | None = None


def root_of(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """The root among these nodes: of several kinds the one that explains the others."""
    for find in FINDERS:
        found = find(job, graph, within)
        if found:
            return found
    return None


def _targets(graph: WaitGraph, within: frozenset[str]) -> list[Edge]:
    return [edge for edge in graph.edges if edge.waiter in within and edge.target in within]


def _most_waited_for(graph: WaitGraph, keys: set[str]) -> str:
    return max(sorted(keys), key=lambda key: sum(key in graph.reached(other) for other in graph.nodes))


def _waiter(graph: WaitGraph, edges: list[Edge]) -> Stand | None:
    return next((stand for edge in edges if (stand := graph.nodes[edge.waiter].stand)), None)


def _dead(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """An actor that is dead, and that others still wait for."""
    keys = {edge.target for edge in _targets(graph, within) if graph.nodes[edge.target].state == "dead"}
    if not keys:
        return None
    key = _most_waited_for(graph, keys)
    number = graph.nodes[key].number
    actor = next(a for a in job.actors.values() if job.number_of_actor[a.id] == number)
    edges = [edge for edge in _targets(graph, within) if edge.target == key]
    death = (actor.death.splitlines() or ["Ray does not say why"])[0].partition(" Some common causes")[0]
    death = death.removeprefix("The actor is dead because ")
    waiter = _waiter(graph, edges)
    return Root(
        cls="actor_died", guilty=(number,), keys=(key,), waiter=waiter,
        says=f"{job.name(number)} is dead ({death.rstrip('.')}), and {chain(job, graph, edges[:1])}",
        named=(number, *(graph.nodes[e.waiter].number for e in edges[:1])), facts=(f"{job.name(number)} is DEAD: {death}",),
        fix="Have whoever waits learn of it: keep a reference of a call to each actor and pass it to ray.wait, or set a timeout of the group.",
    )  # fmt: skip


def _unplaced(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """An actor or call for which the cluster has no room."""
    edges = [e for e in _targets(graph, within) if graph.nodes[e.target].state == "unplaced"]
    if not edges:
        return None
    edge = edges[0]
    node = graph.nodes[edge.target]
    actor = next((a for a in job.actors.values() if job.number_of_actor[a.id] == node.number), None)
    needs = (actor.needs if actor else edge.task.needs if edge.task else None) or {}
    wanted = ", ".join(f"{value:g} {name}" for name, value in sorted(needs.items())) or "a place"
    name = job.name(node.number) if actor else f"call {edge.what}"
    waiter = graph.nodes[edge.waiter].stand
    return Root(
        cls="actor_unschedulable", guilty=(node.number,) if actor else (graph.nodes[edge.waiter].number,), keys=(edge.target,),
        stand=waiter, waiter=waiter,
        says=f"{name} was never started: it needs {wanted}, and {_room(job, needs)}",
        named=(node.number,), facts=(f"{name} needs {wanted}; {_room(job, needs)}",),
        fix="Ask for less, end what holds the resources, or add a node.",
    )  # fmt: skip


def _room(job: ActorJob, needs: dict[str, float]) -> str:
    """The reason for the lack of room: no machine is large enough, or who holds it."""
    rooms = [node.resources or {} for node in job.ray.nodes if node.alive]
    if not any(all(room.get(name, 0) >= value for name, value in needs.items()) for room in rooms):
        most = ", ".join(f"{max((r.get(n, 0) for r in rooms), default=0):g} {n}" for n in sorted(needs))
        return f"no machine of the cluster has more than {most}"
    mine = [a for a in job.actors.values() if a.state == "ALIVE" and set(a.needs or {}) & set(needs)]
    theirs = [r for r in job.ray.rivals if set(r.needs or {}) & set(needs)]
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


def _locked(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """A call that waits for a lock, event or queue of its own process."""
    keys = {
        key for key in within
        if (s := graph.nodes[key].stand) and s.doing in ("lock", "queue") and not graph.out[key]
        # A call that nobody waits for may be a server's, for as long as the job lasts.
        if (s.task and s.task.kind == "DRIVER_TASK") or any(edge.target == key for edge in graph.edges)
    }  # fmt: skip
    if not keys:
        return None
    key = _most_waited_for(graph, keys)
    stand = graph.nodes[key].stand
    assert stand is not None
    edges = [edge for edge in graph.edges if edge.target == key]
    return Root(
        cls="local_lock_deadlock", guilty=(stand.number,), keys=(key,), stand=stand, waiter=_waiter(graph, edges),
        says=f"{standing(job, stand)} and waits for {DOING[stand.doing]}",
    )  # fmt: skip


def _circle(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """Calls that wait for each other in a circle."""
    circles = [way for key in sorted(within) if (way := graph.cycle(key)) and within.issuperset(way)]
    if not circles:
        return None
    way = min(circles, key=len)
    edges = [
        next(e for e in graph.out[key] if e.target == following)
        for key, following in zip(way, [*way[1:], way[0]], strict=True)
    ]
    guilty = _broke_the_order(graph, edges) or [graph.nodes[key].number for key in way]
    stand = next((s for key in way if (s := graph.nodes[key].stand) and s.number in guilty and s.place), None)
    waiter = next((s for key in way if (s := graph.nodes[key].stand) and s is not stand and s.place), None)
    numbers = tuple(dict.fromkeys(graph.nodes[key].number for key in way))
    if len(numbers) == 1:
        says = f"{job.name(numbers[0])} waits for itself: {chain(job, graph, edges)}"
    else:
        says = f"{several([job.name(n) for n in numbers])} wait for each other: {chain(job, graph, edges)}"
    return Root(
        cls="actor_call_cycle", guilty=tuple(sorted(set(guilty))), keys=tuple(way), says=says, stand=stand, waiter=waiter,
        named=numbers, fix="Let one of them go on without the other: return before the wait, or take both sides in one order.",
    )  # fmt: skip


def _broke_the_order(graph: WaitGraph, edges: list[Edge]) -> list[int]:
    """Members that stand outside the collective in which the others of the circle wait; else, who holds what is waited for."""
    absent = [
        graph.nodes[e.target].number for e in edges
        if e.kind == "group" and not ((s := graph.nodes[e.target].stand) and s.doing in PEERS)
    ]  # fmt: skip
    return absent or [graph.nodes[e.target].number for e in edges if e.kind == "coordinator"]


def _absent(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """A member of a torch group in which no call runs, or that never came to the group."""
    edges = [
        e for e in _targets(graph, within) if e.kind == "group" and graph.nodes[e.target].state == "idle"
    ]
    if not edges:
        return None
    numbers = sorted({graph.nodes[e.target].number for e in edges})
    waiter = graph.nodes[edges[0].waiter].stand
    assert waiter is not None
    waiting = sorted({graph.nodes[e.waiter].number for e in edges})
    names = several([job.name(n) for n in numbers])
    caller = job.caller(waiter.task) if waiter.task else None
    asked = (
        f"; {job.name(caller)} called {waiter.task.method}() of {several([job.name(n) for n in waiting])} and not of {names}"
        if caller is not None and waiter.task
        else ""
    )
    stand = next((s for key in graph.nodes if (s := graph.nodes[key].stand) and s.number == caller), None)
    return Root(
        cls="rendezvous_mismatch" if waiter.doing == "rendezvous" else "missing_rank", guilty=tuple(numbers),
        keys=tuple(sorted({e.target for e in edges})), stand=stand or waiter, waiter=waiter, named=(*numbers, *waiting),
        says=f"{names} {'are' if len(numbers) > 1 else 'is'} in no call, while {several([job.name(n) for n in waiting])} wait{'' if len(waiting) > 1 else 's'} in {edges[0].what}{at(waiter.place)} for {'them' if len(numbers) > 1 else 'it'}{asked}",
        fix="Call the collective's method on every member, or leave the member out of the group.",
    )  # fmt: skip


def _unlike(job: ActorJob, graph: WaitGraph, within: frozenset[str]) -> Root | None:
    """Members that all stand in collectives, and not in the same one."""
    edges = [e for e in _targets(graph, within) if e.kind == "group"]
    stands = {key: s for e in edges for key in (e.waiter, e.target) if (s := graph.nodes[key].stand)}
    if not stands:
        return None
    counts = Counter(s.inner for s in stands.values())
    least = min(counts.values())
    odd = (
        [s for s in stands.values() if counts[s.inner] == least] if len(counts) > 1 else list(stands.values())
    )
    guilty = tuple(sorted({s.number for s in odd}))
    return Root(
        cls="collective_order_mismatch", guilty=guilty, keys=tuple(stands), stand=odd[0],
        waiter=next((s for s in stands.values() if s not in odd), None), named=tuple(s.number for s in stands.values()),
        says=f"members of one group are in different collectives: {'; '.join(f'{standing(job, s)}, in {s.inner}' for s in list(stands.values())[:4])}",
    )  # fmt: skip


Finder = Callable[[ActorJob, WaitGraph, frozenset[str]], Root | None]
FINDERS: tuple[Finder, ...] = (_dead, _locked, _circle, _unplaced, _absent, _unlike)
__all__ = ["Root", "root_of", "waits_for"]
