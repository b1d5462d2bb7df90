"""The recorded paths of a case."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.paths.turned import walked_of
from nsadiag.analysis.paths.walk import Walk


def walks_of(case: Case) -> dict[int, Walk]:
    """By rank; none of those that have been written over."""
    ranks = case.cell.ranks
    whole = {rank.rank: rank.walked for rank in ranks if rank.walked and rank.walked.is_whole}
    whole |= walked_of({rank.rank: rank.turned for rank in ranks if rank.turned})
    return {number: Walk(number, walked) for number, walked in whole.items()}


def are_turns(case: Case) -> bool:
    """Whether the paths are of a real job, of which turns alone are on record."""
    return any(rank.turned for rank in case.cell.ranks)
