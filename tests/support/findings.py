"""What a rule concludes from a cell, without the facts by which it declines."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.case import Case
from nsadiag.analysis.rules.drafts import finding_of
from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.rules.rule import Check, Draft
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.records import Finding


def findings(check: Check, case: Case) -> list[Finding]:
    """All of them, in the order in which it yields them."""
    rule = next(rule for rule in RULES if rule.check is check)
    return [finding_of(rule, said, case.cell) for said in check(case) if isinstance(said, Draft)]


def ranks(folder: Path, number: int) -> RunDir:
    run = RunDir(path=folder)
    for n in range(number):
        make_private_dir(run.rank(n).path)
        write_json(run.rank(n).meta, {"rank": n, "world_size": number, "pid": 100 + n})
    return run
