"""The user's source as it was when the job ran, wherever the evidence is read."""

from __future__ import annotations

import contextlib
import linecache
import threading
from collections.abc import Iterator

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.layout import RunDir
from nsadiag.source.archive import kept_names

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


def cited(cell: CellEvidence, file: str, line: int) -> str:
    """The line in the run directory's copy of the file, for an evidence's source; in the file itself where none was kept."""
    kept = kept_names(RunDir(path=cell.path)).get(file)
    return f"sources/{kept}#line {line}" if kept else f"{file}#line {line}"
