"""A rank that its launcher saw end first, with an exit code, and of which no log is there."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import capitalized, these
from nsadiag.evidence.records import Strength

APART_S = 1.0  # launchers write whole seconds


def exit_code_alone(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "exited":
        return
    code = first.rank.end.exit_code
    near = [b for b in breaks(case.cell) if b.kind == "exited" and b.t_s - first.t_s < APART_S]
    ranks = tuple(sorted(b.rank.rank for b in near))
    one = len(ranks) == 1
    first_of_them = (
        f"was the first to end, with exit code {code}; its traceback is"
        if one
        else f"ended at the same time, with exit code {code}; their tracebacks are"
    )
    yield Draft(
        cls="rank_exception",
        outcome="crashed",
        strength=Strength.WEAK,
        summary=f"{capitalized(these(ranks))} {first_of_them} not among these files.",
        guilty_ranks=ranks if one else (),
        evidence={f"the launcher saw exit code {code}": case.told.launcher_log or first.rank.source},
        gaps=(f"no traceback of {these(ranks)}",) if one else ("which of them failed first no line tells",),
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
