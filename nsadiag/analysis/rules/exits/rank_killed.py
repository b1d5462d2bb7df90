"""A rank that was ended by a signal which neither the launcher nor nsadiag sent."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import Break, first_break
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.rules.drafts import at_line
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import SentSignal
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Act, Place, Strength

FIXES = {
    signal.SIGKILL: "Find who sent it: the kernel's OOM killer (dmesg, memory.events), a scheduler's limit, or a memory guard.",
    signal.SIGSEGV: "Native code crashed: run the line shown under a debugger, or without that extension.",
    signal.SIGABRT: "Native code aborted: its message is in the rank's stderr.log.",
    signal.SIGBUS: "A mapped file shrank, or /dev/shm is full: check df -h /dev/shm and the loader's workers.",
    signal.SIGFPE: "Native code divided by zero: look at the line shown for a size or count that is 0 on this rank.",
    signal.SIGXCPU: "The rank has used up its CPU time (ulimit -t): raise the limit, or ask the scheduler for more.",
    signal.SIGALRM: "A timer of the job's own ended it: cancel it on every path out of the code that it guards (in a finally: signal.alarm(0)), or install a handler.",
    signal.SIGINT: "Find who interrupts single ranks (kill -INT, a notebook, a supervisor): to stop a job, send the signal to its launcher.",
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


def rank_killed(case: Case) -> Iterator[Draft | Declined]:
    cell, first = case.cell, first_break(case.cell)
    if first is None or first.kind != "killed":
        yield from other_break(cell)
        return
    killed = first.killed_by
    memory = _out_of_memory(cell, first.rank) if killed == signal.SIGKILL else {}
    if memory:
        yield _draft(
            first,
            killed,
            cls="host_oom",
            how=f"was killed by the kernel's out-of-memory killer ({killed.name})",
            evidence=memory,
            fix=OOM_FIX,
        )
    if killed == signal.SIGKILL and cell.oom:
        yield Declined(
            f"the kernel's logs of {count(len(cell.oom), 'host')} name no rank, and no oom_kill counter grew",
            "nodes/*/oom.json",
        )
    if killed == signal.SIGTERM and LAUNCHER_TOLD.search(cell.launcher_stderr):
        yield _of_the_launcher(cell, first, killed)
    if sent := _sent(cell, first, killed):
        yield _by_a_rank(first, killed, *sent)
    yield _draft(
        first,
        killed,
        fix=_fix(cell, first, killed),
        actions=BY_SIGNAL.get(killed, ("fix code",)),
    )


def _draft(
    first: Break,
    killed: signal.Signals,
    *,
    fix: str,
    how: str = "",
    sent_at: Place | None = None,
    evidence: Claims | None = None,
    cls: str = "rank_killed",
    actions: tuple[Act, ...] = ("fix code",),
) -> Draft:
    rank = first.rank
    lost = "; the other ranks failed because it was gone." if rank.meta.world_size > 1 else "."
    # Of a job that others watched nobody may know when it began.
    when = f" at {first.t_s:.1f} s, before any other rank failed" if first.t_s else ", as its launcher saw it"
    found = {f"rank {rank.rank} ended by {killed.name}{when}": "ends.json"}
    if killed != signal.SIGKILL and "Fatal Python error" in rank.faults:
        found["faulthandler wrote the stack at the moment of death"] = f"{rank.source}/faults.log"
    return Draft(
        cls=cls,
        outcome="crashed",
        strength=Strength.CONCLUSIVE,
        summary=f"Rank {rank.rank} {how or f'was killed with {killed.name}'}{_done(rank)}{lost}",
        guilty_ranks=(rank.rank,),
        at=locations.of_faults(rank.faults) or sent_at or locations.of_black_box(rank),
        evidence={**found, **(evidence or {})},
        fix=fix,
        actions=actions,
    )


def _fix(cell: CellEvidence, first: Break, killed: signal.Signals) -> str:
    fix = FIXES.get(killed, f"Find out who sends {killed.name} to it.")
    if cell.collected is None or first.rank.faults:
        return fix
    # Where no line is shown.
    return fix.replace("the line shown", "it").replace("the rank's stderr.log", "that rank's own log")


def _done(rank: RankEvidence) -> str:
    """Its steps, where its recording has them."""
    return "" if rank.end.steps is None else f" after {count(rank.end.steps, 'step')}"


def _of_the_launcher(cell: CellEvidence, first: Break, killed: signal.Signals) -> Draft:
    """A signal from outside the job, which the launcher passed on to all ranks."""
    return dataclasses.replace(
        _draft(
            first,
            killed,
            fix=FIXES[killed],
            actions=("retry",),
            evidence={"the launcher says that it received the signal": "nodes/*/launcher.stderr.log"},
        ),
        strength=Strength.LIKELY,
        summary=f"The launcher received {killed.name} from outside the job and terminated all ranks after {first.rank.end.steps} steps.",
        guilty_ranks=tuple(r.rank for r in cell.ranks if r.end.signal == killed),
    )


def _by_a_rank(first: Break, killed: signal.Signals, sender: RankEvidence, row: SentSignal) -> Draft:
    itself, at = sender.rank == first.rank.rank, locations.of_text(row.place)
    who = "the rank itself" if itself else f"rank {sender.rank}"
    return _draft(
        first,
        killed,
        how=f"killed itself with {killed.name}" if itself else f"was killed by {who} with {killed.name}",
        sent_at=at,
        evidence={
            f"rank {sender.rank} sent it by {row.call}(){at_line(at)}": f"{sender.source}/signals.jsonl"
        },
        fix=f"The line shown sends {killed.name}, on {who}: find what led there. To stop a job on purpose, raise an exception, so that the reason is on record.",
    )


def _sent(cell: CellEvidence, first: Break, killed: signal.Signals) -> tuple[RankEvidence, SentSignal] | None:
    """The rank that sent the signal, and its record of sending it."""
    for rank in cell.ranks:
        for row in rank.signals:
            sent_s = (row.t_mono_ns - cell.started_mono_ns) / 1e9
            hits = row.to in (first.rank.meta.pid, 0) and row.signal == killed
            if hits and -SENT_WITHIN_S < sent_s - first.t_s <= 1.0:
                return rank, row
    return None


def _out_of_memory(cell: CellEvidence, rank: RankEvidence) -> Claims:
    """The kernel's log line about this process, or an oom_kill counter that grew."""
    found: Claims = {}
    for node in cell.oom:
        for told in (each for each in node.kernel if each.pid == rank.meta.pid):
            found[f"the kernel's log: {told.line}"] = "nodes/*/oom.json"
        for group in node.grown:
            limit = f", its limit is {group.limit_bytes / 2**20:,.0f} MiB" if group.limit_bytes else ""
            claim = f"oom_kill of its cgroup grew from {group.oom_kills_before} to {group.oom_kills}{limit}"
            found[claim] = "nodes/*/oom.json"
    return found


RULE = Rule(
    concludes=("rank_killed", "host_oom"),
    means={
        "rank_killed": "A signal killed a rank.",
        "host_oom": "The kernel killed a rank because its host or cgroup ran out of memory.",
    },
    family="exit",
    detected="A rank's end by a signal that neither the launcher nor nsadiag sent is the earliest failure. If a rank of the job sent the signal, `where` is the line that did. Its class is `host_oom` if the kernel's log names the process, or an oom_kill counter of its cgroup grew.",
    fix="Find who sent the signal: the kernel's OOM killer, a scheduler's limit, a memory guard, a line of the job's own.",
    check=rank_killed,
    needs=("ends",),
    explained_by=("never_joined",),
    confused_with=("host_oom", "rank_exception"),
)
