"""DDP's "marked ready twice": a parameter's gradient that arrived twice in one backward."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase

READY_TWICE = re.compile(r"mark(?:ed)? (?:a variable )?(?:as )?ready (?:only once|twice)", re.IGNORECASE)
PARAMETER = re.compile(r"Parameter at index (\d+)(?: with name (\S+))? has been marked as ready twice")


def _parameter(rank: RankEvidence, message: str) -> str | None:
    match = PARAMETER.search(message)
    if match is None:
        return None
    index, name = int(match[1]), match[2]
    named = next((m.parameters for m in rank.ddp if len(m.parameters) > index), None)
    found = name or (named[index].name if named else None)
    return found.rstrip(".").removeprefix("module.") if found else None


def _is_reentrant(rank: RankEvidence) -> bool:
    """Whether reentrant checkpointing ran a backward of its own inside the backward."""
    frames = (rank.exception or NOT_RAISED).frames
    return any(f.file.endswith("torch/utils/checkpoint.py") and f.function == "backward" for f in frames)


def _forwards(rank: RankEvidence, case: Case) -> int:
    """The number of forwards between the previous step and the failing backward."""
    events = case.events
    mine = events[
        (events["rank"] == rank.rank) & (events.step == events.step[events["rank"] == rank.rank].max())
    ]
    return int(((mine.kind == Kind.FORWARD) & (mine.phase == Phase.BEGIN)).sum())


def ddp_ready_twice(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "exception" or first.rank.exception is None:
        yield from other_break(case.cell)
        return
    message = first.rank.exception.message
    if not READY_TWICE.search(message):
        return
    guilty = tuple(r.rank for r in case.cell.ranks if r.exception and READY_TWICE.search(r.exception.message))
    parameter = _parameter(first.rank, message)
    reentrant = _is_reentrant(first.rank)
    wrong = first.rank.recomputed[0] if first.rank.recomputed else None
    forwards = _forwards(first.rank, case)
    why = (
        f"checkpointing recomputed {', '.join(wrong.recomputed)} instead of {', '.join(wrong.forward)}"
        if wrong
        else "reentrant activation checkpointing ran the same module's backward twice"
        if reentrant
        else f"its model's forward ran {forwards} times before this backward"
        if forwards > 1
        else "it is used twice in one step"
    )
    evidence = {message.splitlines()[0][:300]: f"{first.rank.source}/exception.json"}
    if reentrant:
        evidence["the traceback passes through CheckpointFunction.backward (use_reentrant=True)"] = (
            f"{first.rank.source}/exception.json"
        )
    if wrong:
        evidence[
            f"the function at {wrong.place} ran {', '.join(wrong.forward)} in forward and {', '.join(wrong.recomputed)} in backward"
        ] = f"{first.rank.source}/recomputed.jsonl"
    yield Draft(
        strength=Strength.CONCLUSIVE,
        summary=f"DDP saw the gradient of {parameter or 'one parameter'} twice in one backward: {why}.",
        guilty_ranks=guilty,
        where=Where(
            parameter=parameter,
            module=parameter.rpartition(".")[0] if parameter else None,
            phase="backward",
            step=first.rank.end.steps,
        ).at(locations.of_exception(first.rank.exception)),
        evidence=evidence,
        fix=(
            "Use checkpoint(..., use_reentrant=False), and bind the module early: in a loop, `lambda x: block(x)` "
            "recomputes the last block every time; pass the block itself instead: checkpoint(block, x)."
            if reentrant
            else "Run the model once before each backward (both inputs in one batch), or with find_unused_parameters=False."
            if forwards > 1
            else "Use each parameter once a step, or wrap with DDP(static_graph=True)."
        ),
    )


RULE = Rule(
    name="ddp_ready_twice",
    means={"ddp_ready_twice": "DDP saw a parameter's gradient twice in one backward pass."},
    family="exit",
    outcome="crashed",
    detected='DDP\'s "marked as ready twice": the parameter, and whether reentrant checkpointing ran its backward twice',
    fix="Use each parameter once a step: use_reentrant=False, one forward before each backward, or static_graph=True.",
    check=ddp_ready_twice,
    needs=("ends",),
    explained_by=("dataloader_worker_fault",),
    confused_with=("rank_exception",),
)
