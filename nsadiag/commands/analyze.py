"""Kinds of what `nsadiag analyze` is given."""

from __future__ import annotations

from pathlib import Path

from nsadiag.errors import UsageError


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()


def check_one_run(path: Path) -> None:
    """Raises UsageError unless there is something to read, and it is no matrix."""
    if is_matrix(path):
        raise UsageError(f"{path} is a matrix", "give the directory of one of its cells")
    if not path.exists():
        raise UsageError(
            f"{path} does not exist", "give a run directory, or dumps, stacks or logs of other tools"
        )
