"""`nsadiag analyze` on what nsadiag did not write: nothing is written there either."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.external.judge import judge_external
from nsadiag.errors import UsageError
from nsadiag.reports import RunReport


def is_ours(path: Path) -> bool:
    """Whether nsadiag wrote the directory."""
    ranks = path / "ranks"
    own = ranks.is_dir() and any(len(p.name) == 5 and p.name.isdigit() for p in ranks.iterdir())
    return own or (path / "watch.json").exists()


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()


def analyze_path(path: Path) -> RunReport:
    """The report on evidence from elsewhere. Raises UsageError."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", "give a run directory, or one with dumps, stacks or logs")
    verdict = judge_external(path)
    return RunReport(
        directory=path,
        name=path.resolve().name,
        world_size=verdict.world_size,
        verdict=verdict,
    )
