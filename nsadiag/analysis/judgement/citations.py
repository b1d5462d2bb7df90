"""Files that a verdict cites: a claim without its file is no evidence, and a verdict that rested on it is less sure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nsadiag.analysis.judgement.origins import origin_of
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Finding, Strength

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
    return origin_of(cell, source) if cell.collected else _there(cell.path, source)


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
