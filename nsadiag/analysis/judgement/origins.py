"""The files of other tools that stand behind the names that a run directory would have."""

from __future__ import annotations

import re
from pathlib import Path

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.recorder import OF_WATCHDOG

ENTRY = re.compile(r"entries\[(\d+)\]")


def origin_of(cell: CellEvidence, source: str) -> str | None:
    """The file and place where a fact stood, of a source that a rule names; None where nothing like it was collected."""
    name, _, place = source.partition("#")
    path = Path(name)
    if name == "ends.json":
        return (cell.collected.launcher_log if cell.collected else "") or None
    files = cell.collected.files if cell.collected else {}
    if name in files:
        return source
    file = next((p for p in path.parents if p.as_posix() in files), None)
    if file is None:
        return None
    return "#".join(
        part for part in (file.as_posix(), _place_in(cell, file.as_posix(), path.name, place)) if part
    )


def _place_in(cell: CellEvidence, file: str, document: str, place: str) -> str:
    """The number of an entry in a dump, the line of a timeout or traceback in a log."""
    for rank in cell.ranks:
        raised = rank.exception.source if rank.exception else ""
        if document == "exception.json" and raised.startswith(f"{file}#"):
            return raised.partition("#")[2]
        if document == "fr.json" and (entry := ENTRY.fullmatch(place)):
            dumps = (c.flight_recorder for c in rank.captures if c.source == file and c.flight_recorder)
            if any(dump.get("version") == OF_WATCHDOG for dump in dumps):
                return f"line {entry[1]}"
    return place if document == "fr.json" else ""
