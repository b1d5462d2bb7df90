"""A finding becomes a verdict with what the cell adds to it; light, so that dumps are judged without the rules."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.judgement.action import action_of
from nsadiag.analysis.judgement.hosts import hosts_of, lost_hosts
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.recorder import OF_WATCHDOG
from nsadiag.evidence.records import Finding, Progress, Strength, Times, Verdict, Where
from nsadiag.evidence.spans import spans

HOSTS_NAMED = 3
# How often class and ranks were both right, by what was claimed, in logs and stacks that people posted and that nothing had been
# developed on: docs/lab/posted_confidence.csv, by Laplace's rule, levels of falling shares taken together.
RELIABILITY: dict[Strength, float] = {
    Strength.CONCLUSIVE: 0.76,
    Strength.STRONG: 0.76,
    Strength.LIKELY: 0.76,
    Strength.WEAK: 0.62,
    Strength.GUESS: 0.29,
}


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
        confidence=confidence_of(cell, cause),
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


def confidence_of(cell: CellEvidence, cause: Finding) -> float:
    """The strength's own claim; of somebody's logs and stacks the worth of such claims so far."""
    if cell.collected is None or _has_dumps(cell):
        return cause.strength.value
    return RELIABILITY.get(cause.strength, cause.strength.value)


def _has_dumps(cell: CellEvidence) -> bool:
    """Whether a flight recorder's dump is among what was collected, and not the watchdog's lines alone."""
    recorders = (c.flight_recorder for rank in cell.ranks for c in rank.captures)
    return any(each and each.get("version") != OF_WATCHDOG for each in recorders)


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
