"""What a verdict cites is there: a claim without its file is no evidence, and a verdict that rested on it is less sure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Evidence, Finding

# The same said by somebody else.
STAND_INS = {"py_spy.json": "traceback.txt", "fr.json": "fr.pickle"}
MISSING_CONFIDENCE = 0.75
NO_STACKS_CONFIDENCE = 0.6


def checked(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding with those claims alone whose files lie in the run directory, and no surer than they allow."""
    there = tuple(row for each in cause.evidence if (row := _there(cell.path, each)))
    most = 1.0 if len(there) == len(cause.evidence) else MISSING_CONFIDENCE
    if cause.outcome == "hung" and _unseen(cell, cause):
        most = NO_STACKS_CONFIDENCE
    return dataclasses.replace(cause, evidence=there, confidence=min(cause.confidence, most))


def _there(root: Path, evidence: Evidence) -> Evidence | None:
    name, mark, place = evidence.source.partition("#")
    path = Path(name)
    stand_in = STAND_INS.get(path.name)
    for found in (path, path.with_name(stand_in) if stand_in else None):
        if found is not None and "*" not in name and (root / found).exists():
            return dataclasses.replace(evidence, source=f"{found}{mark}{place}")
    matches = sorted(root.glob(name)) if "*" in name else []
    if matches:
        return dataclasses.replace(evidence, source=f"{matches[0].relative_to(root)}{mark}{place}")
    return None


def _unseen(cell: CellEvidence, cause: Finding) -> bool:
    """Whether somebody looked at a guilty rank that lives, and could not see where it stands."""
    guilty = [rank for rank in cell.ranks if rank.rank in cause.guilty_ranks]
    return any(rank.captures and not any(c.stacks for c in rank.captures) for rank in guilty)
