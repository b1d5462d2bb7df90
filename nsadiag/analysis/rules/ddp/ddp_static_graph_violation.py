"""DDP with static_graph=True whose graph changes after the first step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.facts.parameters import (
    Change,
    branch_around,
    changed_after,
    unused_in,
    without_gradient,
)
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.drafts import all_but, hung_or_crashed
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED, Cause
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.spans import shortened

CHANGED = re.compile(
    r"training graph has changed in this iteration|not compatible with static_graph", re.IGNORECASE
)
USED_AFTER_ALL = re.compile(r"unused in first iteration, but then got used", re.IGNORECASE)


def _says_so(rank: RankEvidence) -> bool:
    return bool(rank.exception and CHANGED.search(first_of(rank.exception).message))


def _changed(rank: RankEvidence, message: str) -> tuple[list[str], str]:
    """The parameters that came into use or went out of use, and which of the two."""
    if USED_AFTER_ALL.search(message):
        first = without_gradient(rank)
        return list(first.missing if first else ()), "were used for the first time"
    row = changed_after(rank, 1)
    if row:
        return row.missing or row.used_again, "were not used" if row.missing else "were used again"
    return unused_in(rank, message), "were not used"


def ddp_static_graph_violation(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "exception" or not _says_so(first.rank):
        yield from other_break(case.cell)
        return
    rank, exception = first.rank, first_of(first.rank.exception or NOT_RAISED)
    guilty = tuple(r.rank for r in case.cell.ranks if _says_so(r))
    names, how = _changed(rank, exception.message)
    row = changed_after(rank, 1)
    step = row.step if row else rank.end.steps
    branch = branch_around(case.cell, rank, names)
    what = shortened(names) or "some parameters"
    yield Draft(
        outcome=hung_or_crashed(case.cell),
        strength=Strength.CONCLUSIVE,
        summary=f"static_graph=True promises DDP a graph that never changes, but at step {step} it did: {what} {how}.",
        guilty_ranks=guilty,
        blocked_ranks=all_but(case.cell, guilty),
        where=Where(
            parameter=names[0] if names else None,
            module=names[0].rpartition(".")[0] if names else None,
            phase="backward",
            step=step,
        ).at(branch or place_of(exception)),
        evidence=dict(_evidence(rank, exception, names, how, row, branch)),
        fix="Set static_graph=False (with find_unused_parameters=True if branches vary), or run the same modules in every step: multiply unwanted outputs by zero, and use detach() to freeze only from the start.",
    )


def _evidence(
    rank: RankEvidence, exception: Cause, names: list[str], how: str, row: Change | None, branch: Place | None
) -> Iterator[tuple[str, str]]:
    yield exception.message.splitlines()[0][:300], f"{rank.source}/exception.json"
    if row:
        yield f"from step {row.step} on {shortened(names)} {how}", f"{rank.source}/ungraded.jsonl"
    if any(model.has("static_graph") for model in rank.ddp):
        yield "the model was wrapped with static_graph=True", f"{rank.source}/ddp.json"
    if branch:
        yield (
            f"whether they are used is decided at {locations.short(branch)}: {branch.code}",
            "sources/index.json",
        )


RULE = Rule(
    name="ddp_static_graph_violation",
    means={"ddp_static_graph_violation": "The graph changed under static_graph=True."},
    family="exit",
    outcome="crashed",
    detected="DDP's own error under `static_graph=True`. The step and the parameters come from the gradients that the optimizer found or missed; `where` is the condition that skips them, or else the backward",
    fix="Set static_graph=False, or run the same modules in every step.",
    check=ddp_static_graph_violation,
    needs=("ends",),
    explained_by=("ddp_ready_twice",),
    confused_with=("ddp_unused_parameter", "rank_exception"),
)
