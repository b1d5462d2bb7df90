"""The user's source as it was when the job ran, wherever the evidence is read."""

from __future__ import annotations

import ast
import contextlib
import linecache
import threading
from collections.abc import Iterator
from pathlib import Path

from nsadiag.analysis.load import CellEvidence

# All threads share one `linecache`: cells that are judged at the same time may hold different files of one name.
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def shown(cell: CellEvidence) -> Iterator[None]:
    """Lets `linecache` read the kept sources: the file on this disk may be another, or a newer one."""
    with _one_at_a_time, _in_linecache(cell):
        yield


@contextlib.contextmanager
def _in_linecache(cell: CellEvidence) -> Iterator[None]:
    before = {file: linecache.cache.get(file) for file in cell.sources}
    for file, text in cell.sources.items():
        # No time of change: linecache then never looks at the disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        yield
    finally:
        for file, entry in before.items():
            if entry is None:
                linecache.cache.pop(file, None)
            else:
                linecache.cache[file] = entry


def source_of(cell: CellEvidence, file: str) -> str | None:
    """The file's text: as kept with the evidence, else as it is on this disk; None where neither is there."""
    kept = cell.sources.get(file)
    if kept is not None:
        return kept
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return None


def tree_of(cell: CellEvidence, file: str) -> ast.Module | None:
    """The file as a syntax tree; None where there is no source, or it is not Python."""
    text = source_of(cell, file)
    try:
        return ast.parse(text) if text is not None else None
    except (SyntaxError, ValueError, RecursionError):
        return None
