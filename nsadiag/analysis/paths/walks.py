"""The recorded paths of a case."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer, is_of_a_collective
from nsadiag.analysis.paths.turned import walked_of
from nsadiag.analysis.paths.walk import Walk
from nsadiag.analysis.records import RankEvidence


def walks_of(case: Case) -> dict[int, Walk]:
    """By rank; none of those that have been written over."""
    ranks = case.cell.ranks
    whole = {rank.rank: rank.walked for rank in ranks if rank.walked and rank.walked.is_whole}
    victims = {rank.rank for rank in ranks if _is_victim(rank)}
    whole |= walked_of({rank.rank: rank.turned for rank in ranks if rank.turned}, victims)
    return {number: Walk(number, walked) for number, walked in whole.items()}


def are_turns(case: Case) -> bool:
    """Whether the paths are of a real job, of which turns alone are on record."""
    return any(rank.turned for rank in case.cell.ranks)


def _is_victim(rank: RankEvidence) -> bool:
    """Whether the exception that ended it says no more than that others had ended, or came to another call."""
    if rank.exception is None or not rank.exception.in_main_thread:
        return False
    first = first_of(rank.exception)
    return follows_a_peer(first) or is_of_a_collective(first)
