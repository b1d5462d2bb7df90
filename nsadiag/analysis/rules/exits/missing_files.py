"""Files that a rank asks for again and again, and that some rank's failed code would have made.

A thread that writes catches what goes wrong and says so in the log; whoever waits for its file learns nothing of it.
What ties the two is the source: a name that the waiting code asks for stands in the very lines that the exception
kept from running.
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
class Unmade:
    """An exception that did not end its ranks, and who waits for what it kept from being made."""

    blocked: BlockedRank
    asks: str  # the condition of the loop that waits
    name: str
    rows: dict[int, tuple[int, Raised]]  # by rank, with the line of raised.jsonl


def unmade(case: Case) -> Unmade | None:
    """The newest such exception; none that all ranks met, and none that a rank met twice and went on from."""
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
            return Unmade(blocked=blocked, asks=asked[1], name=max(names, key=len), rows=alike)
    return None


def _rows(rank: RankEvidence) -> Iterator[tuple[int, Raised]]:
    keys = [_key(row) for row in rank.raised]
    for line, row in enumerate(rank.raised, start=1):
        if keys.count(_key(row)) == 1 and row.how != "in flight" and not follows_a_peer(first_of(row)):
            yield line, row


def _key(row: Raised) -> tuple[str, int]:
    return row.type, row.frames[-1].line if row.frames else 0


def _cut_off(cell: CellEvidence, row: Raised) -> set[str]:
    """Names in the lines that the exception kept from running: its own, and what is below it in each function that it left."""
    frames = (f for f in row.frames if is_user(f.file))
    return set().union(*(names_from(cell.code, f.file, f.line) for f in frames))
