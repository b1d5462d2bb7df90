"""Kinds of what `nsadiag analyze` is given."""

from __future__ import annotations

from pathlib import Path


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()
