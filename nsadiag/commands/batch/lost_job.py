"""The verdict on a cell whose job ended and left no result: unknown, with what its scheduler says of it."""

from __future__ import annotations

from pathlib import Path

from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.records import Evidence, Progress, Times, Verdict
from nsadiag.spec import Cell


def lost(job: str, cell: Cell, epitaph: list[tuple[str, Path | None]], run: RunDir, logs: Path) -> Verdict:
    """The verdict on a job that has ended and left no result."""
    words = epitaph[0][0] if epitaph else "nothing is known of it"
    return Verdict(
        outcome="unknown",
        cls="unknown",
        confidence=0.0,
        summary=f"The job of this cell ended without a result: {words}.",
        guilty_ranks=(),
        blocked_ranks=(),
        world_size=cell.world_size,
        where=None,
        peers_at=None,
        progress=Progress(),
        evidence=tuple(
            Evidence(claim=claim, source=str((path or logs).relative_to(run.path))) for claim, path in epitaph
        ),
        rejected=(),
        gaps=(f"job {job} wrote no verdict",),
        fix=None,
        next=f"read the job's output in {logs}; then nsadiag matrix ... --resume, after removing {run.path / 'cells' / cell.id}",
        times=Times(),
    )
