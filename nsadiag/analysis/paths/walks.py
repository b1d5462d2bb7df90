"""The recorded paths of a case."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.paths.walk import Walk


def walks_of(case: Case) -> dict[int, Walk]:
    """By rank; none of those that have been written over."""
    whole = {rank.rank: rank.walked for rank in case.cell.ranks if rank.walked and rank.walked.is_whole}
    return {number: Walk(number, walked) for number, walked in whole.items()}
