"""The best explanation beside the recorded paths: a branch that one rank took more often makes its loop end earlier."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import Candidate, Kind, shown
from nsadiag.analysis.explain.candidates.walked_branch import branch_at, first_parting
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations


def as_recorded(case: Case, best: Candidate) -> Candidate:
    """The candidate; where it is the end of a loop's inputs, and the ranks parted at an `if` in that loop before, that branch.

    Then the loop is behind on one rank, and its inputs need not be fewer.
    """
    loop = best.condition
    if best.kind != Kind.LOOP_END or loop is None or not (best.guilty and best.blocked):
        return best
    context = case.once(Context)
    found = first_parting(context, best.guilty[0], best.blocked[0])
    if found is None or not loop.has_in_body(locations.place(*found[0].at, None)):
        return best
    branch = branch_at(context, *found[0].at)
    if branch is None or branch.provenance == "rank":
        return best
    at = locations.short(branch.place)
    return dataclasses.replace(
        best,
        kind=Kind.BRANCH,
        condition=branch,
        depends_on="data",
        because=f"{best.because}; the ranks diverged before, at `{shown(branch)}` ({at})",
    )
