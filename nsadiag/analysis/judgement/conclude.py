"""A finding becomes a verdict with what the cell adds to it; light, so that dumps are judged without the rules."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Act, Action, Finding, Progress, Times, Verdict, Where
from nsadiag.evidence.spans import spans

HOSTS_NAMED = 3


def verdict_of(
    cell: CellEvidence,
    cause: Finding,
    failed: tuple[str, ...],
    *,
    progress: Progress,
    times: Times,
) -> Verdict:
    """`failed`: gaps for detectors that could not do their work."""
    gaps = tuple(dict.fromkeys((*failed, *cell.gaps, *cause.gaps, *(g for r in cell.ranks for g in r.gaps))))
    return Verdict(
        outcome=cause.outcome,
        cls=cause.cls,
        confidence=cause.confidence,
        summary=_with_hosts(cell, cause),
        guilty_ranks=cell.everyone(cause.guilty_ranks),
        blocked_ranks=cell.everyone(cause.blocked_ranks, but=cause.guilty_ranks),
        world_size=cell.world_size,
        where=_where(cell, cause),
        peers_at=cause.peers_at,
        progress=progress,
        evidence=cause.evidence,
        rejected=cause.rejected,
        gaps=gaps,
        fix=cause.fix,
        next=cause.next,
        times=times,
        action=action_of(cell, cause),
    )


def _where(cell: CellEvidence, cause: Finding) -> Where | None:
    hosts = {hosts_of(cell).get(rank) for rank in cause.guilty_ranks}
    if cause.where is None or cause.where.host or len(hosts) != 1 or None in hosts:
        return cause.where
    return dataclasses.replace(cause.where, host=hosts.pop())


def _with_hosts(cell: CellEvidence, cause: Finding) -> str:
    """The summary, and the hosts of the guilty ranks and those that were lost, in a job on several hosts."""
    hosts = hosts_of(cell)
    on: dict[str, list[int]] = {}
    for rank in cause.guilty_ranks:
        if rank in hosts and hosts[rank] not in cause.summary:
            on.setdefault(hosts[rank], []).append(rank)
    more = []
    if len(on) <= HOSTS_NAMED:
        plural = {True: ("ranks", "are"), False: ("rank", "is")}
        for host, ranks in on.items():
            word, verb = plural[len(ranks) > 1]
            more.append(f"{word} {spans(ranks)} {verb} on {host}")
    for name, lost_s in lost_hosts(cell).items():
        if name not in cause.summary:
            more.append(f"host {name} stopped responding {lost_s:.0f} s into the job")
    words = "; ".join(more)
    if words and cause.summary.endswith("."):
        return f"{cause.summary} {words[0].upper()}{words[1:]}."
    return f"{cause.summary} ({words})" if words else cause.summary


WHY: dict[Act, str] = {
    "fix code": "another attempt with the same code and input ends the same way",
    "retry": "nothing says that the code or its input caused it",
    "exclude host": "all guilty ranks are on this host, and no other is",
    "wait": "nothing has failed yet",
    "stop": "nothing shows that it will go on, or what a retry would change",
}
ENDED = "nothing had failed when it was ended"


def action_of(cell: CellEvidence, cause: Finding) -> Action | None:
    """None where nothing is to be done."""
    found = next((a for act in cause.actions if (a := _possible(cell, cause, act))), None)
    if found is None or found.do != "retry":
        return found
    # Whatever its class: what has failed in the same way before is no chance.
    again = _failed_before(cell)
    return Action(do="fix code", because=again[0], source=again[1]) if again else found


def _possible(cell: CellEvidence, cause: Finding, act: Act) -> Action | None:
    host = _only_host(cell, cause) if act == "exclude host" else None
    if act == "exclude host" and host is None:
        return None
    fact = cause.evidence[0] if cause.evidence else None
    why = ENDED if act == "wait" and not cell.attached else WHY[act]
    because = f"{why}: {fact.claim}" if fact else why
    return Action(do=act, because=because, host=host, source=fact.source if fact else None)


def _only_host(cell: CellEvidence, cause: Finding) -> str | None:
    """The host of all guilty ranks, of a job that has others as well."""
    hosts = hosts_of(cell)
    guilty = {hosts.get(rank) for rank in cause.guilty_ranks} or {None}
    if cause.where and cause.where.host:
        guilty = {cause.where.host}
    others = {*hosts.values()} - guilty
    return guilty.pop() if len(guilty) == 1 and others else None


def _failed_before(cell: CellEvidence) -> tuple[str, str] | None:
    """An earlier attempt of the launcher's that ended by the exception that ended the last one as well."""
    for rank in cell.ranks:
        last = headline(first_of(rank.exception)) if rank.exception else None
        for number, exception in rank.attempts:
            if last is not None and headline(first_of(exception)) == last:
                source = f"{rank.source}/attempts/{number:02d}/exception.json"
                return f"attempt {number} had ended in the same way: rank {rank.rank} raised {last}", source
    return None


def hosts_of(cell: CellEvidence) -> dict[int, str]:
    """By rank; empty where all are on one host."""
    found = {rank.rank: rank.meta.host for rank in cell.ranks if rank.meta.host}
    return found if len({*found.values()} | {*lost_hosts(cell)}) > 1 else {}


def lost_hosts(cell: CellEvidence) -> dict[str, float]:
    """Nodes that were lost while the job ran, and when."""
    return {node.name: node.lost_s for node in cell.watch.nodes if node.lost_s is not None}
