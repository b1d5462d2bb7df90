"""Sentences about evidence that only messages of logs and tools tell of, and that decides nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.texts.signals import signal_of
from nsadiag.analysis.records import CellEvidence, Collected
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.documents.watch import NO_END
from nsadiag.evidence.messages import Fact, NativeStack, ProcessEnd, StuckWatchdog, TakenDown, ToolAnswer
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.phrases import capitalized, these

MOST_CITED = 4
MOST_THREADS = 8
BY_HAND = {"SIGHUP": "its terminal or session was closed", "SIGINT": "somebody pressed Ctrl-C", "SIGTERM": "a scheduler, a parent process or a person ended it"}  # fmt: skip


def said_of_job(case: Case) -> tuple[str, Claims] | None:
    """A sentence on what messages state of the job, and their lines; None where there is none."""
    cell, told = case.cell, case.told
    return (
        _cancelled(told) or _stuck(told) or _operations(told) or _taken_down(cell, told)
        or _aborted(cell, told) or _debugged(told) or _not_understood(cell, told)
    )  # fmt: skip


# What a call of a library's waits for, by the begin of its name.
TELLING = re.compile(
    r"^_*(?:nccl|c10d::|gloo::|cuda|cu[A-Z]|ibv_|fi_|pthread_(?:mutex|cond)|lll_lock|GI_.*lock|sem_|futex|poll|epoll|recv|send|read|kmp_|omp_|GOMP|tcp|MPI_)",
    re.IGNORECASE,
)


def _debugged(told: Collected) -> tuple[str, Claims] | None:
    """Threads in a debugger, each by the innermost call that tells something, and the one of torch's or NCCL's around it."""
    found = told.of(NativeStack)
    if not found:
        return None
    seen: Claims = {}
    for stack, source in found[:MOST_THREADS]:
        seen.setdefault(f"{_thread(stack)} {_stands(stack)}", source)
    main = next((stack for stack, _ in found if stack.thread == 1), found[0][0])
    of = f" of process {main.pid}" if main.pid else ""
    return (
        f"A debugger shows {_thread(main)}{of} {_stands(main)}; for whom it waits the stacks of one process do not tell",
        seen,
    )


def _thread(stack: NativeStack) -> str:
    return (
        "the main thread" if stack.thread == 1 else f"thread {stack.thread}" if stack.thread else "a thread"
    )


def _stands(stack: NativeStack) -> str:
    """`in ncclLocalOpAppend, called by c10d::ProcessGroupNCCL::_allgather_base`."""
    names = [name for name in stack.functions if TELLING.match(name)] or [*stack.functions]
    inner = names[0] if names else stack.frames[-1].function
    around = next((n for n in names[1:] if n.startswith(("c10d::", "gloo::", "nccl"))), "")
    outer = next((n for n in reversed(names[1:]) if n.startswith("c10d::")), around)
    return f"in {inner}" + (f", called by {outer}" if outer else "")


def shows_no_failure(cell: CellEvidence) -> bool:
    """Whether these files have neither an error, an end, a stack nor a call of any process."""
    return cell.collected is not None and not (
        cell.unnamed or any(rank.exception or rank.captures or rank.end != NO_END for rank in cell.ranks)
    )


def _not_understood(cell: CellEvidence, told: Collected) -> tuple[str, Claims] | None:
    """Lines that look like errors, where nothing else tells of a failure."""
    if not told.unread or not shows_no_failure(cell):
        return None
    first = told.unread[0]
    return (
        f"No line of these files says what failed, or whether anything did; what looks most like it is `{first.fact.text[:160]}`",
        _cited([(each.fact, each.source) for each in told.unread]),
    )


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


def _taken_down(cell: CellEvidence, told: Collected) -> tuple[str, Claims] | None:
    """Ranks that NCCL's watchdog ended, where no line tells of the call."""
    found = told.of(TakenDown)
    ranks = sorted({rank for fact, _ in found if (rank := told.rank_of(fact)) is not None})
    if not ranks or any(rank.captures for rank in cell.ranks):
        return None
    return (
        f"NCCL's watchdog ended {these(ranks)}, since a collective there had timed out or failed; the lines that say which one are not in these files",
        _cited(found),
    )


def _aborted(cell: CellEvidence, told: Collected) -> tuple[str, Claims] | None:
    """A process that ended itself: what the end looks like says nothing of the cause."""
    ranks = [rank.rank for rank in cell.ranks if rank.end.signal == signal.SIGABRT]
    ends = [(end, source) for end, source in told.of(ProcessEnd) if signal_of(end) == signal.SIGABRT]
    if not ranks and not ends:
        return None
    who = these(ranks) if ranks else "A process"
    seen: Claims = _cited(ends) or {f"{these(ranks)} ended by SIGABRT": told.launcher_log or "."}
    return (
        f"{capitalized(who)} aborted (SIGABRT), which a process does to itself: NCCL's watchdog after a timeout, an uncaught C++ exception or a failed assertion; {'their' if len(ranks) > 1 else 'its'} own last lines say which, and are not in these files",
        seen,
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
