"""Certainty of a hang: proven by a deadlock, or suspected."""

from __future__ import annotations

import dataclasses

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.deadlock import deadlock_of
from nsadiag.evidence.records import Certainty, Evidence, Finding


def weighed(case: Case, cause: Finding) -> tuple[Finding, Certainty | None]:
    """The finding of a hang with the deadlock that proves it, where there is one; no certainty of anything else."""
    if cause.outcome != "hung":
        return cause, None
    deadlock = case.once(deadlock_of)
    if deadlock is None:
        return cause, "suspected"
    proof = Evidence(claim=f"nothing can wake them: {deadlock.reason}", source=deadlock.source)
    return dataclasses.replace(cause, evidence=(*cause.evidence, proof)), "proven"
