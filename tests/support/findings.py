"""What a rule concludes from a cell, without the facts by which it declines."""

from __future__ import annotations

from nsadiag.analysis.case import Tables
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.rule import Check
from nsadiag.evidence.records import Finding


def findings(check: Check, cell: CellEvidence, tables: Tables) -> list[Finding]:
    """All of them, in the order in which it yields them."""
    return [said for said in check(cell, tables) if isinstance(said, Finding)]
