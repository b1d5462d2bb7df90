"""One cell from its directory: all of its ranks, or of very many those that matter."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.ingest.run_directory import read_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.scale.digests.chosen import chosen_in
from nsadiag.evidence.layout import RunDir


def load_cell(path: Path) -> CellEvidence:
    """Reads the directory; of very many ranks those that matter. Never raises on what is missing inside it."""
    return read_cell(path, chosen_in(RunDir(path=path)))
