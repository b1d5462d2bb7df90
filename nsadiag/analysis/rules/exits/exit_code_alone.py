"""A rank that its launcher saw end first, with an exit code, and of which no log is there."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength


def exit_code_alone(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if case.cell.collected is None or first is None or first.kind != "exited":
        return
    rank, code = first.rank.rank, first.rank.end.exit_code
    yield Draft(
        cls="rank_exception",
        outcome="crashed",
        strength=Strength.WEAK,
        summary=f"Rank {rank} was the first to end, with exit code {code}; its traceback is not among these files.",
        guilty_ranks=(rank,),
        evidence={f"the launcher saw exit code {code}": "ends.json"},
        gaps=(f"no log of rank {rank}",),
        next="torchrun --log-dir logs --redirects 3 --tee 3 <the same script>, then: nsadiag analyze logs",
    )


RULE = Rule(
    concludes=("rank_exception",),
    about="collected",
    family="exit",
    detected="torchrun's table of failures shows which rank ended first, with an exit code, and no traceback of it is among the files.",
    fix="Read that rank's own stderr.",
    check=exit_code_alone,
    explained_by=("rank_exception", "unnamed_exception"),
    confused_with=("rank_killed", "rank_exited_early"),
)
