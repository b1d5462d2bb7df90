"""Errors of a clean-up that took the place of what it was cleaning up after: the rank would have ended of that one too.

`except Exception: rescue(); raise` and `finally: close()` do not answer what they were entered for. If they fail
themselves, Python shows the new error last, and the old one as what was being handled.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.source.patterns.handlers import lets_through

Raised = dict[str, Any]


def marked(cell: CellEvidence) -> CellEvidence:
    """The same, with `displaced` on each cause of an exception that a clean-up's own error only took the place of."""
    if not any(_may_be(row) for rank in cell.ranks for row in _rows(rank)):
        return cell
    return dataclasses.replace(cell, ranks=tuple(_of_rank(cell, rank) for rank in cell.ranks))


def _rows(rank: RankEvidence) -> list[Raised]:
    return [*filter(None, [rank.exception]), *rank.raised, *(exception for _, exception in rank.attempts)]


def _may_be(row: Raised) -> bool:
    cause = row.get("cause") if isinstance(row, dict) else None
    return isinstance(cause, dict) and (not cause.get("meant") or _may_be(cause))


def _of_rank(cell: CellEvidence, rank: RankEvidence) -> RankEvidence:
    return dataclasses.replace(
        rank,
        exception=_marked(cell, rank.exception) if rank.exception else None,
        raised=[_marked(cell, row) for row in rank.raised],
        attempts=tuple((number, _marked(cell, row)) for number, row in rank.attempts),
    )


def _marked(cell: CellEvidence, row: Raised) -> Raised:
    if not _may_be(row):
        return row
    cause = _marked(cell, row["cause"])
    if not cause.get("meant") and _is_displaced(cell, row, cause):
        cause = {**cause, "displaced": True}
    return {**row, "cause": cause}


def _is_displaced(cell: CellEvidence, later: Raised, earlier: Raised) -> bool:
    """Whether the later one left an `except` or `finally` that would have let the earlier one go on its way.

    A traceback begins where the exception was caught: there the `try` stands.
    """
    frames = earlier.get("frames")
    if not frames:
        return False
    file, function, raised_at = (frames[0][key] for key in ("file", "function", "line"))
    later_at = [
        f["line"] for f in later.get("frames") or () if (f["file"], f["function"]) == (file, function)
    ]
    source = cell.code.file(file) if later_at else None
    return source is not None and any(
        lets_through(source, raised_at=raised_at, failed_at=failed_at) for failed_at in later_at
    )
