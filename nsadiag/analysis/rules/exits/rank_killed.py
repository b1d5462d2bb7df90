"""A rank that was ended by a signal which neither the launcher nor nsadiag sent."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import SentSignal
from nsadiag.evidence.records import Act, Place, Strength, Where

FIXES = {
    signal.SIGKILL: "Find who sent it: the kernel's OOM killer (dmesg, memory.events), a scheduler's limit, or a memory guard.",
    signal.SIGSEGV: "Native code crashed: run the line shown under a debugger, or without that extension.",
    signal.SIGABRT: "Native code aborted: its message is in the rank's stderr.log.",
    signal.SIGBUS: "A mapped file shrank, or /dev/shm is full: check df -h /dev/shm and the loader's workers.",
    signal.SIGFPE: "Native code divided by zero: look at the line shown for a size or count that is 0 on this rank.",
    signal.SIGXCPU: "The rank has used up its CPU time (ulimit -t): raise the limit, or ask the scheduler for more.",
    signal.SIGALRM: "A timer of the job's own ended it: cancel it on every path out of the code that it guards (in a finally: signal.alarm(0)), or install a handler.",
    signal.SIGTERM: "Find what terminates single ranks: a preempting scheduler, a health check, a clean-up script.",
}
OOM_FIX = "The machine, or the job's cgroup, ran out of memory: load less at once, use fewer workers, or raise the limit."
# Signals from outside, such as a scheduler's preemption: a retry may succeed. The others come from the process itself or
# from a limit that it reached; a SIGKILL may come from a memory guard, which would send it again.
BY_SIGNAL: dict[int, tuple[Act, ...]] = {
    signal.SIGTERM: ("retry",),
    signal.SIGINT: ("retry",),
    signal.SIGHUP: ("retry",),
    signal.SIGKILL: ("stop",),
}
LAUNCHER_TOLD = re.compile(
    r"[Rr]eceived (Signals\.)?SIG(TERM|INT|HUP)?\S* death signal|Received (\d+) death signal"
)
# A signal is sent a moment before the process ends.
SENT_WITHIN_S = 30.0


def _last_words(rank: RankEvidence) -> Place | None:
    return locations.of_faults(rank.faults) or locations.of_black_box(rank)


def _sender(
    cell: CellEvidence, victim: RankEvidence, number: int, t_s: float
) -> tuple[RankEvidence, SentSignal] | None:
    """The rank that sent the signal, and its record of sending it."""
    for rank in cell.ranks:
        for row in rank.signals:
            sent_s = (row.t_mono_ns - cell.started_mono_ns) / 1e9
            hits = row.to in (victim.meta.pid, 0) and row.signal == number
            if hits and -SENT_WITHIN_S < sent_s - t_s <= 1.0:
                return rank, row
    return None


def _out_of_memory(cell: CellEvidence, rank: RankEvidence, number: int) -> Claims:
    """The kernel's log line about this process, or an oom_kill counter that grew."""
    if number != signal.SIGKILL:
        return {}
    found: Claims = {}
    for node in cell.oom:
        for told in node.kernel:
            if told.pid == rank.meta.pid:
                found[f"the kernel's log: {told.line}"] = "nodes/*/oom.json"
        for group in node.grown:
            limit = group.limit_bytes
            claim = f"oom_kill of its cgroup grew from {group.oom_kills_before} to {group.oom_kills}" + (
                f", its limit is {limit / 2**20:,.0f} MiB" if limit else ""
            )
            found[claim] = "nodes/*/oom.json"
    return found


def rank_killed(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "killed":
        yield from other_break(case.cell)
        return
    rank, number = first.rank, first.rank.end.signal or 0
    memory = _out_of_memory(case.cell, rank, number)
    sender = None if memory else _sender(case.cell, rank, number, first.t_s)
    everyone = tuple(r.rank for r in case.cell.ranks if r.end.signal == number)
    all_told = number == signal.SIGTERM and bool(LAUNCHER_TOLD.search(case.cell.launcher_stderr))
    guilty = everyone if all_told else (rank.rank,)
    if number == signal.SIGKILL and case.cell.oom and not memory:
        yield Declined(
            f"the kernel's logs of {len(case.cell.oom)} host{'s' if len(case.cell.oom) > 1 else ''} name no rank, and no oom_kill counter grew",
            "nodes/*/oom.json",
        )
    yield Draft(
        cls="host_oom" if memory else "rank_killed",
        strength=Strength.CONCLUSIVE if memory else Strength.LIKELY if all_told else Strength.CONCLUSIVE,
        summary=_summary(rank, number, bool(memory), sender, all_told),
        guilty_ranks=guilty,
        blocked_ranks=all_but(case.cell, guilty),
        where=Where(step=rank.end.steps).at(_place(rank, sender)),
        evidence={
            f"rank {rank.rank} ended by {_name(number)} at {first.t_s:.1f} s, before any other rank broke": "ends.json",
            **memory,
            **dict(_more(rank, number, sender, all_told)),
        },
        fix=_fix(rank, number, bool(memory), sender),
        actions=("fix code",) if memory or sender else BY_SIGNAL.get(number, ("fix code",)),
    )


def _fix(
    rank: RankEvidence,
    number: int,
    memory: bool,
    sender: tuple[RankEvidence, SentSignal] | None,
) -> str:
    """Advice by signal and sender."""
    if memory:
        return OOM_FIX
    if sender:
        who = "the rank itself" if sender[0].rank == rank.rank else f"rank {sender[0].rank}"
        return f"The line shown sends {_name(number)}, on {who}: find what led there. To stop a job on purpose, raise an exception, so that the reason is on record."
    return FIXES.get(signal.Signals(number), f"Find out who sends {_name(number)} to it.")


def _name(number: int) -> str:
    return signal.Signals(number).name


def _place(rank: RankEvidence, sender: tuple[RankEvidence, SentSignal] | None) -> Place | None:
    """The line that sent the signal, if known; otherwise where the rank was."""
    sent_at = locations.of_text(sender[1].place) if sender else None
    return locations.of_faults(rank.faults) or sent_at or _last_words(rank)


def _summary(
    rank: RankEvidence,
    number: int,
    memory: bool,
    sender: tuple[RankEvidence, SentSignal] | None,
    all_told: bool,
) -> str:
    steps = rank.end.steps
    if all_told:
        return f"The launcher received {_name(number)} from outside the job and terminated all ranks after {steps} steps."
    by = " by the kernel's out-of-memory killer" if memory else ""
    if sender and sender[0].rank == rank.rank:
        return f"Rank {rank.rank} sent itself {_name(number)} ({sender[1].call}) after {steps} steps; the other ranks failed because it was gone."
    if sender:
        by = f" by rank {sender[0].rank} ({sender[1].call})"
    return f"Rank {rank.rank} was killed{by} with {_name(number)} after {steps} steps; the other ranks failed because it was gone."


def _more(
    rank: RankEvidence, number: int, sender: tuple[RankEvidence, SentSignal] | None, all_told: bool
) -> Iterator[tuple[str, str]]:
    if number != signal.SIGKILL and "Fatal Python error" in rank.faults:
        yield "faulthandler wrote the stack at the moment of death", f"{rank.source}/faults.log"
    if sender:
        yield (
            f"rank {sender[0].rank} sent it by {sender[1].call} at {sender[1].place}",
            f"{sender[0].source}/signals.jsonl",
        )
    if all_told:
        yield "the launcher says that it received the signal", "nodes/*/launcher.stderr.log"


RULE = Rule(
    name="rank_killed",
    concludes=("rank_killed", "host_oom"),
    means={
        "rank_killed": "A signal killed a rank.",
        "host_oom": "The kernel killed a rank because its host or cgroup ran out of memory.",
    },
    family="exit",
    outcome="crashed",
    detected="The earliest end by a signal that neither the launcher nor nsadiag sent. If a rank of the job sent it, the line that did. Across several hosts also: a host stopped responding, and its peers' connections were closed (at 60 %)",
    fix="Find who sent the signal: the kernel's OOM killer, a scheduler's limit, a memory guard, a line of the job's own.",
    check=rank_killed,
    needs=("ends",),
    explained_by=("never_joined",),
    confused_with=("host_oom", "rank_exception"),
)
