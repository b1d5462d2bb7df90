"""Files that a rank polls for, and that another rank's failed code would have written.

A writer that catches and logs its exception tells nothing to the rank that waits for its file.
The source connects the two: the name that is polled for occurs in the lines that the exception kept from running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.blocked import BlockedRank, hung_ranks, living_children
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.user_code import is_user
from nsadiag.source import loops
from nsadiag.source.patterns.file_names import asked_for, names_from


@dataclass(frozen=True, kw_only=True)
class MissingFile:
    """An exception that did not end its ranks, and a rank that waits for the file it prevented."""

    blocked: BlockedRank
    asks: str  # the condition of the polling loop
    name: str
    rows: dict[int, tuple[int, Raised]]  # by rank, with the line of raised.jsonl


def missing_file(case: Case) -> MissingFile | None:
    """The newest such exception, unless all ranks raised it, or one rank raised it twice."""
    for blocked in hung_ranks(case):
        at = blocked.state.place
        asked = loops.asks(case.cell.code, at, has_children=bool(living_children(blocked))) if at else None
        if at is None or blocked.state.doing != "sleep" or asked is None or asked[0] != "outside":
            continue
        wanted = asked_for(case.cell.code, blocked.state.frames, at)
        rows = [(rank, line, row) for rank in case.cell.ranks for line, row in _rows(rank)]
        tied = [(r, n, row, names) for r, n, row in rows if (names := wanted & _cut_off(case.cell, row))]
        if not tied:
            continue
        *_, newest, names = max(tied, key=lambda found: found[2].t_mono_ns)
        alike = {r.rank: (n, row) for r, n, row, _ in tied if _key(row) == _key(newest)}
        if len(alike) < len(case.cell.ranks):
            return MissingFile(blocked=blocked, asks=asked[1], name=max(names, key=len), rows=alike)
    return None


def _rows(rank: RankEvidence) -> Iterator[tuple[int, Raised]]:
    keys = [_key(row) for row in rank.raised]
    for line, row in enumerate(rank.raised, start=1):
        if keys.count(_key(row)) == 1 and row.how != "in flight" and not follows_a_peer(first_of(row)):
            yield line, row


def _key(row: Raised) -> tuple[str, int]:
    return row.type, row.frames[-1].line if row.frames else 0


def _cut_off(cell: CellEvidence, row: Raised) -> set[str]:
    """Names in the lines that did not run: the raising line, and those below it in each function that was left."""
    frames = (f for f in row.frames if is_user(f.file))
    return set().union(*(names_from(cell.code, f.file, f.line) for f in frames))
