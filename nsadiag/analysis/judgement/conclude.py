"""A finding becomes a verdict with what the cell adds to it; light, so that dumps are judged without the rules."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.judgement.action import action_of
from nsadiag.analysis.judgement.hosts import hosts_of, lost_hosts
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Finding, Progress, Times, Verdict, Where
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
        confidence=cause.strength.value,
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
        mechanism=cause.mechanism,
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
