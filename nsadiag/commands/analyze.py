"""`nsadiag analyze` on what nsadiag did not write: nothing is written there either."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.errors import UsageError
from nsadiag.reports import RunReport


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()


def analyze_path(path: Path) -> RunReport:
    """The report on evidence from elsewhere. Raises UsageError."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", "give a run directory, or one with dumps, stacks or logs")
    verdict = judge_evidence(path)
    return RunReport(
        directory=path,
        name=path.resolve().name,
        world_size=verdict.world_size,
        verdict=verdict,
    )
