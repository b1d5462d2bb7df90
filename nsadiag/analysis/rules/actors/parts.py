"""Parts that drafts about a job of Ray's share: the root of a hang, and the draft that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.stands import Stand
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.graph import CallGraph, CallWait
from nsadiag.analysis.relations.actors.stuck import Stuck, job_of, stands_in, stuck_sets
from nsadiag.analysis.relations.actors.words import begun, on_hosts, several, standing
from nsadiag.analysis.rules.rule import Claims, Draft
from nsadiag.evidence.records import Strength, Where


@dataclass(frozen=True, kw_only=True)
class Root:
    """The actors that hold the job up, and in what way."""

    guilty: tuple[int, ...]
    keys: tuple[str, ...]  # its nodes in the graph
    says: str
    stand: Stand | None = None  # where it stands
    waiter: Stand | None = None  # one that waits for it
    named: tuple[int, ...] = ()  # of whom the sentence speaks
    facts: tuple[str, ...] = ()
    fix: str | None = None
    cls: str | None = None


Finder = Callable[[ActorJob, CallGraph, frozenset[str]], Root | None]


def by_roots(
    case: Case, find: Finder, instead: Callable[[ActorJob, CallGraph], str]
) -> Iterator[Draft | Declined]:
    """The draft of the first root in a set that is stuck; else the fact that there is none, as `instead` words it."""
    job = case.once(job_of)
    for stuck in case.once(stuck_sets):
        if root := find(job, stuck.graph, stuck.within):
            yield draft_of(case, stuck, root)
            return
    yield Declined(instead(job, case.once(stuck_sets)[-1].graph), job.document)


def waits_within(graph: CallGraph, within: frozenset[str]) -> list[CallWait]:
    """Waits of these nodes for each other."""
    return [edge for edge in graph.edges if edge.waiter in within and edge.waited_for in within]


def most_waited_for(graph: CallGraph, keys: set[str]) -> str:
    """The node for which most others wait in the end."""
    return max(sorted(keys), key=lambda key: sum(key in graph.reached_from(other) for other in graph.nodes))


def waiter_in(graph: CallGraph, edges: list[CallWait]) -> Stand | None:
    """The place of the first of these waiters."""
    return next((stand for edge in edges if (stand := graph.nodes[edge.waiter].stand)), None)


def draft_of(case: Case, stuck: Stuck, root: Root) -> Draft:
    """A hang, and who waits for its root."""
    job, graph, proven = case.once(job_of), stuck.graph, stuck.certainty == "proven"
    waiting = sorted(
        {graph.nodes[key].number for key in graph.nodes if {*root.keys} & graph.reached_from(key)}
        - {*root.guilty, -1}
    )
    others = [job.name(number) for number in waiting if number not in root.named]
    more = f" {begun(several(others))} wait{'s' if len(others) == 1 else ''} for that." if others else ""
    stand = root.stand
    waiter = (
        root.waiter if root.waiter and root.waiter.place else graph.nearest_waiter(root.keys, root.guilty)
    )
    shown = [stand, waiter] if waiter is not stand else [stand]
    evidence: Claims = {standing(job, each): each.source for each in shown if each}
    evidence |= dict.fromkeys(root.facts, job.document)
    if proven:
        names = several([job.name(n) for n in sorted({*root.guilty, *waiting})])
        evidence[f"nobody but {names} could end these waits, and each of them waits or is gone"] = (
            job.document
        )
    host = next(iter(job.hosts_of([stand.number])), None) if stand else None
    return Draft(
        cls=root.cls,
        outcome="hung",
        strength=Strength.STRONG if proven else Strength.WEAK,
        summary=f"{begun(root.says)}.{more}{on_hosts(job, root.guilty)}",
        guilty_ranks=root.guilty,
        blocked_ranks=tuple(n for n in waiting if n not in root.guilty),
        at=stand.place if stand else None,
        where=Where(host=host) if stand and stand.place else None,
        peers_at=waiter.place if waiter else None,
        evidence=evidence,
        gaps=unseen(case),
        fix=root.fix,
        actions=("fix code",) if proven else ("stop",),
    )


def unseen(case: Case) -> tuple[str, ...]:
    """Processes whose stacks could not be had."""
    job = case.once(job_of)
    return tuple(f"{job.name(n)}: no stack of it could be had" for n in case.once(stands_in).blind)
