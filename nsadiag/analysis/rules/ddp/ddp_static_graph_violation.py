"""DDP with static_graph=True whose graph changes after the first step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.facts.parameters import (
    Change,
    branch_around,
    changed_graph,
    unused_in,
    without_gradient,
)
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.drafts import at_line, module_of
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.phrases import was
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import shortened

CHANGED = re.compile(
    r"training graph has changed in this iteration|not compatible with static_graph", re.IGNORECASE
)
USED_AFTER_ALL = re.compile(r"unused in first iteration, but then got used", re.IGNORECASE)


def ddp_static_graph_violation(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "exception" or not _says_so(first.rank):
        yield from other_break(case.cell)
        return
    rank, exception = first.rank, first_of(first.rank.exception or NOT_RAISED)
    names, how, row = _changed(rank, exception.message)
    unused = f"{shortened(names) or 'some parameters'} {was(names)} {how}"
    step = row.step if row else rank.end.steps
    branch = branch_around(case.cell, rank, names)
    evidence = {exception.message.splitlines()[0][:300]: f"{rank.source}/exception.json"}
    if row:
        evidence[f"from step {row.step} on {unused}"] = f"{rank.source}/ungraded.jsonl"
    if any(model.has("static_graph") for model in rank.ddp):
        evidence["the model was wrapped with static_graph=True"] = f"{rank.source}/ddp.json"
    if branch:
        claim = f"whether they are used is decided{at_line(branch)}: `{branch.code}`"
        evidence[claim] = "sources/index.json"
    parameter = names[0] if names else None
    yield Draft(
        strength=Strength.CONCLUSIVE,
        summary=f"static_graph=True promises DDP a graph that never changes, but at step {step} it changed: {unused}.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks if _says_so(r)),
        at=branch or place_of(exception),
        where=Where(parameter=parameter, module=module_of(parameter), phase="backward", step=step),
        evidence=evidence,
    )


def _says_so(rank: RankEvidence) -> bool:
    return bool(rank.exception and CHANGED.search(first_of(rank.exception).message))


def _changed(rank: RankEvidence, message: str) -> tuple[list[str], str, Change | None]:
    """The parameters that came into use or went out of use, which of the two, and the optimizer's record of it."""
    row = changed_graph(rank)
    if USED_AFTER_ALL.search(message):
        unused = without_gradient(rank)
        return list(unused.missing if unused else ()), "used for the first time", row
    if row:
        return row.missing or row.used_again, "not used" if row.missing else "used again", row
    return unused_in(rank, message), "not used", None


RULE = Rule(
    means={"ddp_static_graph_violation": "The graph changed under static_graph=True."},
    family="exit",
    detected="DDP raised its own error under `static_graph=True`. The step and the parameters come from the gradients that the optimizer found or missed. `where` is the condition that skips them, otherwise the backward.",
    fix="Set static_graph=False (with find_unused_parameters=True if branches vary), or run the same modules in every step: multiply unwanted outputs by zero, and use detach() to freeze only from the start.",
    check=ddp_static_graph_violation,
    needs=("ends",),
    explained_by=("ddp_ready_twice",),
    confused_with=("ddp_unused_parameter", "rank_exception"),
)
