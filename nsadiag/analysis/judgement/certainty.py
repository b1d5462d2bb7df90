"""Certainty of a hang: proven by a deadlock, or suspected; and the most that evidence of other tools allows."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import CellEvidence, Movement
from nsadiag.analysis.relations.actors.stuck import stuck_sets
from nsadiag.analysis.relations.deadlock import deadlock_of
from nsadiag.analysis.relations.pending import is_still
from nsadiag.evidence.records import Certainty, Evidence, Finding, Strength

# A rank that was seen once may be on its way. Dumps are written when a collective has timed out.
STRONGEST: dict[Movement, Strength] = {
    "unknown": Strength.STRONG,
    "one": Strength.GUESS,
    "same": Strength.STRONG,
    "moved": Strength.GUESS,
    "young": Strength.GUESS,
}
GAPS: dict[Movement, str] = {
    "unknown": "one snapshot of each rank: nothing shows whether the job still moved when it was taken",
    "one": "one snapshot of each rank: nothing shows whether the job still moved when it was taken",
    "same": "the stacks do not tell how long after one another they were taken",
    "moved": "some rank stood elsewhere in its next stack: the job moved",
    "young": "the calls were pending for too short a time: in a job that runs well ranks are as far apart",
}


SPINS = "livelock_user_code"
OF_A_LOG = "nothing but a log: it has the calls that timed out, and not where any rank stood"


def weighed(case: Case, cause: Finding) -> tuple[Finding, Certainty | None]:
    """The finding of a hang with the deadlock that proves it, where there is one; no certainty of anything else."""
    if cause.outcome != "hung":
        return cause, None
    if case.cell.ray is not None:
        proven = case.once(stuck_sets)[0]
        numbers = {proven.graph.nodes[key].number for key in proven.within}
        return cause, "proven" if numbers.issuperset(cause.guilty_ranks) else "suspected"
    if case.cell.collected is not None:
        return _of_others(case.cell, cause, case.cell.collected.movement), "suspected"
    deadlock = case.once(deadlock_of)
    if deadlock is None and _recurs(case.cell, cause):
        claim = "nothing can end it: no other thread, process, timer or random number has a say, and all that has was the same again"
        proof = Evidence(claim=claim, source="watch.json#looks")
        return dataclasses.replace(cause, evidence=(*cause.evidence, proof)), "proven"
    if deadlock is None:
        return cause, "suspected"
    proof = Evidence(claim=f"nothing can wake them: {deadlock.reason}", source=deadlock.source)
    return dataclasses.replace(cause, evidence=(*cause.evidence, proof)), "proven"


def _recurs(cell: CellEvidence, cause: Finding) -> bool:
    """Whether the loop that a guilty rank was last seen in was followed until its state came back."""
    looks = cell.watch.looks
    motions = [looks[-1].of(rank) for rank in cause.guilty_ranks] if looks and is_still(cell) else []
    return cause.cls == SPINS and any(m and m.endless and m.loop and m.loop.recurs for m in motions)


def _of_others(cell: CellEvidence, cause: Finding, movement: Movement) -> Finding:
    """No surer than the snapshots that somebody took, and with what these leave open."""
    gap = OF_A_LOG if _is_of_logs(cell) else GAPS[movement]
    return dataclasses.replace(
        cause,
        strength=cause.strength.at_most(STRONGEST[movement]),
        gaps=tuple(dict.fromkeys((*cause.gaps, gap))),
    )


def _is_of_logs(cell: CellEvidence) -> bool:
    """Whether lines of logs are all that there is: no dump of a recorder, no stack."""
    captures = [capture for rank in cell.ranks for capture in rank.captures]
    return not any(c.stacks for c in captures) and all(
        is_of_a_log(rank) for rank in cell.ranks if rank.captures
    )
