"""Sets of calls and actors of a job of Ray's that will not go on: proven, and where nothing moved, suspected."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.stands import Stand, Stands, stands_of
from nsadiag.analysis.relations import wait_graph
from nsadiag.analysis.relations.actors.crossings import Crossings
from nsadiag.analysis.relations.actors.graph import CallGraph, graph_of
from nsadiag.analysis.relations.actors.words import DOING, standing, waits_for
from nsadiag.analysis.relations.wait_graph import Edge
from nsadiag.evidence.records import Certainty

# The silence after which a wait for the world outside is suspected: of a call that has returned before, so many times as
# long as it ever took.
PATIENCE_S, TIMES_LONGER, AT_LEAST_S = 120.0, 10.0, 30.0


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """Nodes of the wait-for graph that will not go on."""

    graph: CallGraph
    within: frozenset[str]
    certainty: Certainty


def job_of(case: Case) -> ActorJob:
    """The processes, actors and calls of the job."""
    return ActorJob(cell=case.cell)


def stands_in(case: Case) -> Stands:
    """The place at which each call stood at the second capture."""
    return stands_of(case.once(job_of))


def graph_in(case: Case) -> CallGraph:
    """The wait-for graph at the second capture."""
    return graph_of(case.once(job_of), case.once(stands_in), case.once(_crossings))


def patient_graph(case: Case) -> CallGraph:
    """The same, where a wait that is tried again and again is taken for one without a limit."""
    graph = case.once(graph_in)
    retried = {s.key for s in case.once(stands_in).rows if s.awaits and s.limit} | graph.polling
    # Who is nowhere among the processes that were looked at may still come.
    retried |= {key for key, node in graph.nodes.items() if node.state == "absent"}
    return dataclasses.replace(graph, waiting=graph.waiting | retried)


def stuck_sets(case: Case) -> tuple[Stuck, ...]:
    """The proven one; where nothing moved, that of who tries again and again; where nothing is left to wait for, everybody."""
    graph = case.once(graph_in)
    found = [Stuck(graph=graph, within=graph.stuck, certainty="proven")]
    if case.once(job_of).moved or working(case):
        return tuple(found)
    patient = case.once(patient_graph)
    found.append(Stuck(graph=patient, within=patient.stuck, certainty="suspected"))
    if not (sleeping(case) or outside(case) or starting(case)):
        found.append(Stuck(graph=patient, within=frozenset(patient.nodes), certainty="suspected"))
    return tuple(found)


def working(case: Case) -> list[Stand]:
    """Calls that did something between the captures."""
    return [stand for stand in case.once(stands_in).rows if stand.works]


def sleeping(case: Case) -> list[Stand]:
    """Calls in a sleep, which ends by itself; not one between two questions for what another role is to give."""
    polling, crossings = case.once(graph_in).polling, case.once(_crossings)
    found = [s for s in case.once(stands_in).rows if s.doing == "sleep" and s.key not in polling]
    return [s for s in found if not (crossings and crossings.asks(s))]


def outside(case: Case) -> list[Stand]:
    """Calls that wait for the world, or run and get nowhere."""
    graph = case.once(patient_graph)
    rows = case.once(stands_in).rows
    crossings = case.once(_crossings)
    return [
        s
        for s in rows
        if s.key not in graph.waiting
        and not s.awaits
        and (s.doing != "sleep" or (crossings and crossings.asks(s)))
    ]


def _crossings(case: Case) -> Crossings | None:
    job = case.once(job_of)
    return Crossings(job, case.once(stands_in)) if job.has_roles else None


def waits_between(case: Case) -> tuple[Edge, ...]:
    """The wait-for graph of any case: between ranks, or by the numbers of processes and actors."""
    if case.cell.ray is None:
        return case.once(wait_graph.graph_of).edges
    graph = case.once(graph_in)
    return tuple(
        Edge(waiter=waiter.number, waited_for=target.number, what=edge.what, source=waiter.stand.source)
        for edge in graph.edges
        if (waiter := graph.nodes[edge.waiter]).stand and (target := graph.nodes[edge.waited_for]).number >= 0
    )


def late_outside(case: Case) -> list[Stand]:
    """Those of them that have waited for far longer than such a call ever took."""
    job = case.once(job_of)
    return [stand for stand in outside(case) if age_s(job, stand) > _patience_s(job, stand)]


def starting(case: Case) -> str | None:
    """A wait for what is on its way, as a clause."""
    job, graph = case.once(job_of), case.once(patient_graph)
    edge = next((e for e in graph.edges if graph.nodes[e.waited_for].state == "unknown"), None)
    return f"{job.name(graph.nodes[edge.waiter].number)} {waits_for(job, graph, edge)}" if edge else None


def age_s(job: ActorJob, stand: Stand) -> float:
    """For how long the call has run."""
    return job.age_s(stand.task) if stand.task else job.ray.watched_s


def _patience_s(job: ActorJob, stand: Stand) -> float:
    longest = job.longest_s(stand.task) if stand.task else None
    return PATIENCE_S if longest is None else max(AT_LEAST_S, TIMES_LONGER * longest)


def alone(case: Case) -> list[Stand]:
    """Calls of a group, by processes that no other one is known to share it with; and waits for a device, where nobody can look."""
    graph, rows = case.once(patient_graph), case.once(stands_in).rows
    waiters = {edge.waiter for edge in graph.edges}
    peers = [s for s in rows if s.doing in ("collective", "transfer") and s.key not in waiters]
    return [*peers, *(s for s in rows if s.doing == "device")] if case.once(job_of).has_roles else []


def open_wait(case: Case) -> str:
    """A wait that could still end by itself, as a clause."""
    job = case.once(job_of)
    if found := alone(case):
        call = f" in {found[0].inner}" if found[0].inner and found[0].doing != "device" else ""
        return f"{standing(job, found[0])} and waits{call} for {DOING[found[0].doing]}"
    if found := outside(case):
        return f"{standing(job, found[0])} and waits for {DOING.get(found[0].doing, 'something')}"
    return starting(case) or "no call waits for another one"
