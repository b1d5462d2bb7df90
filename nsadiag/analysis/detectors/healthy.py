"""The job came to its end, or progressed at its own rhythm until it was told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding


def _finished(rank: RankEvidence) -> bool:
    """Reached its exit handlers without an exception; gloo may abort the process after that (seen in 6 of 48 clean jobs)."""
    code, number = rank.end.get("exit_code"), rank.end.get("signal")
    return (
        bool(rank.end.get("clean"))
        and rank.exception is None
        and (code in (0, None) or number == signal.SIGABRT)
    )


def _was_progressing(cell: CellEvidence) -> bool:
    looks = cell.watch.get("looks", [])
    return cell.stopped == "timeout" and bool(looks) and looks[-1]["judgement"] in ("progress", "asleep")


def healthy(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    steps = max((int(r.end.get("steps") or 0) for r in cell.ranks), default=0)
    if cell.ranks and len(cell.ranks) == cell.world_size and all(_finished(r) for r in cell.ranks):
        aborted = [r.rank for r in cell.ranks if r.end.get("signal")]
        evidence = [
            Evidence(
                claim=f"all {cell.world_size} ranks ran to their exit handlers without an exception",
                source="ends.json",
            )
        ]
        if aborted:
            evidence.append(
                Evidence(
                    claim=f"rank {aborted} aborted after its exit handlers: teardown of the process group, not the job",
                    source="ends.json",
                )
            )
        yield Finding(
            detector="healthy",
            cls="healthy",
            outcome="healthy",
            confidence=0.95 if not aborted else 0.8,
            summary=f"Completed: {steps} steps on {cell.world_size} rank{'s' if cell.world_size > 1 else ''} in {cell.watch.get('ended_s', 0):.1f} s.",
            evidence=tuple(evidence),
        )
    elif _was_progressing(cell):
        yield Finding(
            detector="healthy",
            cls="healthy",
            outcome="healthy",
            confidence=0.8,
            summary=f"Still progressing at its own rhythm when --timeout ended it: {steps} steps in {cell.watch.get('ended_s', 0):.0f} s.",
            evidence=(Evidence(claim=cell.watch["looks"][-1]["reason"], source="watch.json#looks"),),
        )
