"""What `nsadiag analyze` is given: a matrix, a run, or files that nsadiag did not write, where nothing is written either."""

from __future__ import annotations

from pathlib import Path


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()
