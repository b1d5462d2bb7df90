"""A finding becomes a verdict with what the cell adds to it; light, so that dumps are judged without pandas."""

from __future__ import annotations

from nsadiag.analysis.load import CellEvidence
from nsadiag.evidence.records import Finding, Progress, Times, Verdict


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
        summary=cause.summary,
        guilty_ranks=cell.everyone(cause.guilty_ranks),
        blocked_ranks=cell.everyone(cause.blocked_ranks, but=cause.guilty_ranks),
        world_size=cell.world_size,
        where=cause.where,
        peers_at=cause.peers_at,
        progress=progress,
        evidence=cause.evidence,
        rejected=cause.rejected,
        gaps=gaps,
        fix=cause.fix,
        next=cause.next,
        times=times,
    )
