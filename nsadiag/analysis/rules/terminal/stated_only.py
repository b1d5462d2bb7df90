"""Sentences about evidence that only messages of logs and tools tell of, and that decides nothing."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from nsadiag.analysis.records import CellEvidence, Collected
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.messages import Fact, ProcessEnd, StuckWatchdog, ToolAnswer
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.phrases import capitalized, these

MOST_CITED = 4
BY_HAND = {"SIGHUP": "its terminal or session was closed", "SIGINT": "somebody pressed Ctrl-C", "SIGTERM": "a scheduler, a parent process or a person ended it"}  # fmt: skip


def said_of_job(cell: CellEvidence) -> tuple[str, Claims] | None:
    """A sentence on what messages state of the job, and their lines; None where there is none."""
    told = cell.collected
    if told is None:
        return None
    return _cancelled(told) or _stuck(told) or _operations(told)


def _cancelled(told: Collected) -> tuple[str, Claims] | None:
    """A launcher that was told to stop."""
    ends = [(end, source) for end, source in told.of(ProcessEnd) if end.why == "cancelled"]
    if not ends:
        return None
    name = _signal(ends[0][0].signal)
    why = f": {BY_HAND[name]}" if name in BY_HAND else ""
    sent = name or "a signal"
    who = "The launcher" if ends[0][0].by == "torchrun" else "The job"
    return f"{who} received {sent} from outside, and its ranks were ended{why}", _cited(ends)


def _signal(text: str) -> str:
    """`SIGHUP`, of the name or of the number."""
    try:
        number = natural(text)
        return text if number is None else signal.Signals(number).name
    except ValueError:
        return ""


def _stuck(told: Collected) -> tuple[str, Claims] | None:
    """NCCL's own thread that got nowhere."""
    stuck = told.of(StuckWatchdog)
    if not stuck:
        return None
    ranks = sorted({rank for fact, _ in stuck if (rank := told.rank_of(fact)) is not None})
    seconds = max((fact.seconds or 0.0 for fact, _ in stuck), default=0.0)
    whose = f" of {these(ranks)}" if ranks else ""
    for_s = f" for {seconds:.0f} s" if seconds else ""
    return (
        f"NCCL's watchdog{whose} made no progress{for_s}: a call of CUDA's or NCCL's in it does not return, or a thread holds the interpreter lock; which collective the ranks were in this log does not tell",
        _cited(stuck),
    )


def _operations(told: Collected) -> tuple[str, Claims] | None:
    """Ranks whose count of operations differs, by NCCL's RAS."""
    found = [
        (answer, source)
        for answer, source in told.of(ToolAnswer)
        if answer.kind == "operations" and answer.ranks
    ]
    ranks = sorted({rank for answer, _ in found for rank in answer.ranks})
    if not ranks:
        return None
    numbers = sorted({answer.number for answer, _ in found if answer.number is not None})
    at = f" ({', '.join(map(str, numbers))})" if numbers else ""
    summary = f"{capitalized(these(ranks))} launched another number of operations{at} than the others, by the answer of NCCL's RAS; in which call they differ it does not tell"
    return summary, _cited(found)


def _cited(facts: Sequence[tuple[Fact, str]]) -> Claims:
    found: Claims = {}
    for fact, source in facts[:MOST_CITED]:
        if fact.text:
            found[fact.text.splitlines()[0][:200]] = source
    return found
