"""The rank that the launcher calls the root cause since it ended first, where that was for want of a peer: people believe it."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.facts.groups import is_of_a_log, newest_dump
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.records import Finding, Rejected


def told(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding, which rules the launcher's root cause out where that is a victim."""
    if cell.collected is None or cell.collected.blamed is None:
        return cause
    number, source = cell.collected.blamed
    rank = next((each for each in cell.ranks if each.rank == number), None)
    why = _why(rank) if rank and number not in cause.guilty_ranks else ""
    if not why:
        return cause
    claim = f"torchrun calls rank {number} the root cause because it was the first to end; {why}"
    row = Rejected(cls="rank_killed", because=claim, source=source)
    others = [each for each in cause.rejected if each.cls != row.cls]
    return dataclasses.replace(cause, rejected=(row, *others))


def _why(rank: RankEvidence) -> str:
    """The reason for which its end is a consequence; empty where none is known."""
    if is_of_a_log(rank) and newest_dump(rank).get("entries"):
        return "it ended because its call had timed out, as its peers' did: it is a victim"
    if rank.exception and follows_a_peer(first_of(rank.exception)):
        return "it ended because it had lost a peer: it is a victim"
    return ""
