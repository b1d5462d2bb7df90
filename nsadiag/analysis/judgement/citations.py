"""Files that a verdict cites: a claim without its file is no evidence, and a verdict that rested on it is less sure."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.recorder import OF_WATCHDOG
from nsadiag.evidence.records import Finding, Strength

ENTRY = re.compile(r"entries\[(\d+)\]")
# The same said by somebody else.
STAND_INS = {"py_spy.json": "traceback.txt", "fr.json": "fr.pickle"}


def checked(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding with those claims alone whose files lie in the run directory, and no surer than they allow."""
    found = [_cited(cell, each.source) for each in cause.evidence]
    there = tuple(dataclasses.replace(e, source=s) for e, s in zip(cause.evidence, found, strict=True) if s)
    rejected = tuple(
        dataclasses.replace(r, source=r.source and _cited(cell, r.source)) for r in cause.rejected
    )
    most = Strength.CONCLUSIVE if len(there) == len(cause.evidence) else Strength.LIKELY
    if cause.outcome == "hung" and cell.collected is None and _unseen(cell, cause):
        most = Strength.WEAK
    return dataclasses.replace(
        cause, evidence=there, rejected=rejected, strength=cause.strength.at_most(most)
    )


def _cited(cell: CellEvidence, source: str) -> str | None:
    return _origin_of(cell, source) if cell.collected else _there(cell.path, source)


def _there(root: Path, source: str) -> str | None:
    """The file that a source names, or the one that stands in for it, as it lies in the run directory."""
    name, mark, place = source.partition("#")
    path = Path(name)
    stand_in = STAND_INS.get(path.name)
    for found in (path, path.with_name(stand_in) if stand_in else None):
        if found is not None and "*" not in name and (root / found).exists():
            return f"{found}{mark}{place}"
    matches = sorted(root.glob(name)) if "*" in name else []
    return f"{matches[0].relative_to(root)}{mark}{place}" if matches else None


def _unseen(cell: CellEvidence, cause: Finding) -> bool:
    """Whether somebody looked at a guilty rank that lives, and could not see where it stands."""
    guilty = [rank for rank in cell.ranks if rank.rank in cause.guilty_ranks]
    return any(rank.captures and not any(c.stacks for c in rank.captures) for rank in guilty)


def _origin_of(cell: CellEvidence, source: str) -> str | None:
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
