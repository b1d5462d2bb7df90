"""DDP's "marked ready twice": a parameter's gradient that arrived twice in one backward."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.drafts import module_of
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase

READY_TWICE = re.compile(r"mark(?:ed)? (?:a variable )?(?:as )?ready (?:only once|twice)", re.IGNORECASE)
PARAMETER = re.compile(r"Parameter at index (\d+)(?: with name (\S+))? has been marked as ready twice")
REENTRANT = "Use checkpoint(..., use_reentrant=False), and bind the module early: in a loop, `lambda x: block(x)` recomputes the last block every time; pass the block itself instead: checkpoint(block, x)."
ONE_FORWARD = "Run the model once before each backward (both inputs in one batch), or with find_unused_parameters=False."
ONCE = "Use each parameter once a step, or wrap with DDP(static_graph=True)."


def ddp_ready_twice(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    raised = first.rank.exception if first and first.kind == "exception" else None
    if first is None or raised is None or not READY_TWICE.search(raised.message):
        yield from other_break(case.cell)
        return
    rank, source = first.rank, f"{first.rank.source}/exception.json"
    parameter = _parameter(rank, raised.message)
    evidence = {raised.message.splitlines()[0][:300]: source}
    why, fix = "it is used twice in one step", ONCE
    if (forwards := _forwards(rank, case)) > 1:
        why, fix = f"its model's forward ran {forwards} times before this backward", ONE_FORWARD
    if _is_reentrant(raised):
        why, fix = "reentrant activation checkpointing ran the same module's backward twice", REENTRANT
        claim = "the traceback passes through CheckpointFunction.backward (use_reentrant=True)"
        evidence[claim] = source
    for wrong in [row for row in rank.recomputed if row.differs][:1]:
        forward, again = ", ".join(wrong.forward), ", ".join(wrong.recomputed)
        why = f"checkpointing recomputed {again} instead of {forward}"
        claim = f"the function at {wrong.place} ran {forward} in forward and {again} in backward"
        evidence[claim] = f"{rank.source}/recomputed.jsonl"
    saying = (r.rank for r in case.cell.ranks if r.exception and READY_TWICE.search(r.exception.message))
    yield Draft(
        outcome="crashed",
        strength=Strength.CONCLUSIVE,
        summary=f"DDP saw the gradient of {parameter or 'one parameter'} twice in one backward: {why}.",
        guilty_ranks=tuple(saying),
        at=locations.of_exception(raised),
        where=Where(parameter=parameter, module=module_of(parameter), phase="backward"),
        evidence=evidence,
        fix=fix,
    )


def _parameter(rank: RankEvidence, message: str) -> str | None:
    match = PARAMETER.search(message)
    if match is None:
        return None
    index, name = int(match[1]), match[2]
    named = next((m.parameters for m in rank.ddp if len(m.parameters) > index), None)
    found = name or (named[index].name if named else None)
    return found.rstrip(".").removeprefix("module.") if found else None


def _is_reentrant(raised: Raised) -> bool:
    """Whether reentrant checkpointing ran a backward of its own inside the backward."""
    frames = raised.frames
    return any(f.file.endswith("torch/utils/checkpoint.py") and f.function == "backward" for f in frames)


def _forwards(rank: RankEvidence, case: Case) -> int:
    """The number of forwards between the previous step and the failing backward."""
    mine = case.events_of(rank.rank)
    newest = mine[mine.step == mine.step.max()]
    return int(((newest.kind == Kind.FORWARD) & (newest.phase == Phase.BEGIN)).sum())


RULE = Rule(
    means={"ddp_ready_twice": "DDP saw a parameter's gradient twice in one backward pass."},
    family="exit",
    detected='DDP raised its error "marked as ready twice". The message names the parameter; the traceback and the events say whether reentrant checkpointing ran its backward twice, or the model ran twice before it.',
    fix="Use each parameter once a step: use_reentrant=False, one forward before each backward, or static_graph=True.",
    check=ddp_ready_twice,
    needs=("ends",),
    explained_by=("dataloader_worker_fault",),
    confused_with=("rank_exception",),
)
