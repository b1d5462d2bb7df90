"""Exceptions raised in a clean-up that masked the one being handled, of which the rank would have ended as well.

`except Exception: rescue(); raise` and `finally: close()` do not answer what they were entered for. If they fail
themselves, Python shows the new error last, and the old one as what was being handled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.exceptions import Cause, Raised
from nsadiag.source.patterns.handlers import lets_through

Row = TypeVar("Row", bound=Cause)


def marked(cell: CellEvidence) -> CellEvidence:
    """The same, with `displaced` on each cause of an exception that a clean-up's own error only took the place of."""
    if not any(_may_be(row) for rank in cell.ranks for row in _rows(rank)):
        return cell
    return replace(cell, ranks=tuple(_of_rank(cell, rank) for rank in cell.ranks))


def _rows(rank: RankEvidence) -> list[Raised]:
    return [*filter(None, [rank.exception]), *rank.raised, *(exception for _, exception in rank.attempts)]


def _may_be(row: Cause) -> bool:
    return row.cause is not None and (not row.cause.meant or _may_be(row.cause))


def _of_rank(cell: CellEvidence, rank: RankEvidence) -> RankEvidence:
    return replace(
        rank,
        exception=_marked(cell, rank.exception) if rank.exception else None,
        raised=tuple(_marked(cell, row) for row in rank.raised),
        attempts=tuple((number, _marked(cell, row)) for number, row in rank.attempts),
    )


def _marked(cell: CellEvidence, row: Row) -> Row:
    if row.cause is None or not _may_be(row):
        return row
    cause = _marked(cell, row.cause)
    if not cause.meant and _is_displaced(cell, row, cause):
        cause = replace(cause, displaced=True)
    return replace(row, cause=cause)


def _is_displaced(cell: CellEvidence, later: Cause, earlier: Cause) -> bool:
    """Whether the later one left an `except` or `finally` that would have let the earlier one go on its way.

    A traceback begins where the exception was caught: there the `try` stands.
    """
    frames = earlier.frames
    if not frames:
        return False
    file, function, raised_at = frames[0].file, frames[0].function, frames[0].line
    later_at = [f.line for f in later.frames if (f.file, f.function) == (file, function)]
    source = cell.code.file(file) if later_at else None
    return source is not None and any(
        lets_through(source, raised_at=raised_at, failed_at=failed_at) for failed_at in later_at
    )
