"""The evidence of one job, from a run directory or from what other tools left."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.external.load import load_external
from nsadiag.analysis.ingest.run_directory import read_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.scale.digests.chosen import chosen_in
from nsadiag.evidence.layout import RunDir

OURS = ("run.json", "cell.json", "watch.json", "verdict.json", "nodes")


def is_run_directory(path: Path) -> bool:
    """Whether nsadiag wrote the directory."""
    ranks = path / "ranks"
    own = ranks.is_dir() and any(len(p.name) == 5 and p.name.isdigit() for p in ranks.iterdir())
    return own or any((path / name).exists() for name in OURS)


def load_run(path: Path) -> CellEvidence:
    """The evidence in a directory of nsadiag's, whatever is missing in it; of very many ranks that of those that matter."""
    return read_cell(path, chosen_in(RunDir(path=path)))


def load_cell(path: Path) -> CellEvidence:
    """The evidence in a run directory, or in what other tools left.

    Raises UsageError where there are files in `path`, and none of them is evidence.
    """
    if is_run_directory(path) or not (path.is_file() or any(path.glob("*"))):
        return load_run(path)
    return load_external(path)
