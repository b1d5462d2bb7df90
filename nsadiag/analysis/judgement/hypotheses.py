"""Hypotheses that fit evidence which cannot decide between them, each with the one thing to collect that would."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, is_cut
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.facts.texts.error_causes import cause_in
from nsadiag.analysis.facts.texts.signals import killed_by
from nsadiag.analysis.judgement import collecting
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.collected.camps import camps
from nsadiag.analysis.relations.pending import PendingCall, waits
from nsadiag.evidence.messages import Fact, ProcessEnd, StuckWatchdog
from nsadiag.evidence.phrases import call_name, these
from nsadiag.evidence.records import Finding, Hypothesis, Strength

MOST = 3
OPEN = Strength.GUESS  # up to here several readings fit


def hypotheses_of(case: Case, cause: Finding) -> tuple[Hypothesis, ...]:
    """At most three, the likeliest first; none where the evidence decides, or where nsadiag itself recorded the job."""
    if case.cell.collected is None or cause.outcome in ("healthy", "slow", "wrong"):
        return ()
    found: dict[str, Hypothesis] = {}
    for each in _fitting(case, cause):
        found.setdefault(each.cls, each)
    return tuple(found.values())[:MOST] if len(found) > 1 else ()


def _fitting(case: Case, cause: Finding) -> Iterator[Hypothesis]:
    cell = case.cell
    guess = cause.mechanism == "unseen_rank" and cause.strength.value <= OPEN.value
    if cause.cls == "rank_killed" and _is_by_sigkill(cell, cause):
        yield from _of_a_kill(case, cause)
    if cause.cls != "unknown" and not guess:
        return
    if wait := next(iter(waits(case)), None):
        yield from _of_a_call(case, wait)
    elif case.thread_states:
        yield from _of_stacks(case)
    elif not case.calls.empty and cell.absent:
        yield from _of_other_dumps(case)
    elif _says(cell, StuckWatchdog):
        yield from _of_a_stuck_watchdog(case)
    elif _was_cancelled(cell):
        return
    elif _lost_a_peer(cell) or any(not is_cut(first_of(each)) for each in cell.unnamed):
        yield from _of_a_lost_peer(case)


def _says(cell: CellEvidence, kind: type[Fact]) -> bool:
    return cell.collected is not None and bool(cell.collected.of(kind))


def _was_cancelled(cell: CellEvidence) -> bool:
    """Whether its launcher was told to end it: nothing is left to find out."""
    ends = cell.collected.of(ProcessEnd) if cell.collected else []
    return any(end.why == "cancelled" for end, _ in ends)


def _is_by_sigkill(cell: CellEvidence, cause: Finding) -> bool:
    ends = cell.collected.of(ProcessEnd) if cell.collected else []
    if cause.mechanism == "process_end":
        return any(end.why == "unknown" and killed_by(end) == "SIGKILL" for end, _ in ends)
    return any(r.end.signal == signal.SIGKILL for r in cell.ranks if r.rank in cause.guilty_ranks)


def _of_a_kill(case: Case, cause: Finding) -> Iterator[Hypothesis]:
    """SIGKILL says who was ended, and not by whom."""
    command = collecting.kernel_log(case.cell)
    who = these(cause.guilty_ranks) if cause.guilty_ranks else "the process"
    yield Hypothesis(
        cls="host_oom",
        because=f"{who} ended by SIGKILL without a word, as a process does that the kernel or its cgroup ends for want of memory",
        collect=f"the kernel's or the scheduler's record of the end of {who}",
        command=command,
    )
    yield Hypothesis(
        cls="rank_killed",
        because="a time limit, a preemption, a health check or a person ends processes in the same way",
        collect="the same record: it names no memory then",
        command=command,
    )


def _of_a_call(case: Case, wait: PendingCall) -> Iterator[Hypothesis]:
    """Ranks wait in one call, and nothing shows for whom."""
    cell, first = case.cell, wait.waiting[0]
    call = call_name(wait.collective(first).op, wait.seq, wait.group)
    absent = tuple(sorted({*wait.unseen, *wait.missing} & ({*cell.absent} | {*wait.missing})))
    if absent:
        yield Hypothesis(
            cls="missing_rank",
            because=f"nothing shows where {these(absent)} {'stands' if len(absent) == 1 else 'stand'} while {these(wait.waiting)} {'waits' if len(wait.waiting) == 1 else 'wait'} in {call}",
            collect=f"the logs of all ranks on all nodes, {collecting.of_ranks(absent)} first",
            command=collecting.all_logs(cell),
        )
    else:
        yield Hypothesis(
            cls="missing_rank",
            because=f"{call} has a number, and no stack: a rank may have issued it from another place, or its device may not have come to it",
            collect="the flight recorder's dumps of all ranks at the next timeout",
            command=collecting.recorders(cell),
        )
    yield Hypothesis(
        cls="gpu_kernel_hang",
        because="a kernel that never ends on one GPU holds all others up in the same call",
        collect="the stacks of all ranks while it hangs, and Xid errors of the hosts",
        command=collecting.stacks(cell),
    )
    yield Hypothesis(
        cls="network_stall",
        because="a link that carries nothing any more looks the same",
        collect="NCCL's own log: its warnings name the peer",
        command=collecting.transport(cell),
    )


def _of_stacks(case: Case) -> Iterator[Hypothesis]:
    """Stacks at several places, none of which is the exception."""
    cell, found = case.cell, camps(case)
    waiting = [camp for camp in found if camp.waits]
    if waiting:
        yield Hypothesis(
            cls="missing_rank" if len(waiting) < len(found) else "collective_order_mismatch",
            because=f"{these(waiting[0].ranks)} {'waits' if len(waiting[0].ranks) == 1 else 'wait'} {waiting[0].words}",
            collect="the flight recorder's dumps, which number the calls",
            command=collecting.recorders(cell),
        )
    yield Hypothesis(
        cls="healthy",
        because="stacks taken once show a job that moves in the same way",
        collect="the same stacks again, some seconds later, into the same directory",
        command=collecting.stacks(cell),
    )


def _of_a_lost_peer(case: Case) -> Iterator[Hypothesis]:
    """Only what the loss of a peer leaves: the one that was lost says nothing here."""
    cell = case.cell
    heard = _lost_a_peer(cell)
    absent = tuple(sorted(cell.absent))
    whom = f"{these(absent)}" if absent else "the rank at the other end"
    seen = f"{these(heard)} lost a connection" if heard else "a process lost a connection"
    yield Hypothesis(
        cls="rank_exception",
        because=f"{seen}, and {whom} may have raised an error of its own that is not in these files",
        collect="the logs of all ranks on all nodes",
        command=collecting.all_logs(cell),
    )
    yield Hypothesis(
        cls="host_oom",
        because="a process that the kernel ends for want of memory leaves no line, only lost connections",
        collect="the kernel's or the scheduler's record of killed processes",
        command=collecting.kernel_log(cell),
    )
    if any(_says_network(case, broke.rank.rank) for broke in breaks(cell)):
        yield Hypothesis(
            cls="network_stall",
            because="a link that fails closes connections while both ends live",
            collect="NCCL's own log: its warnings name the peer",
            command=collecting.transport(cell),
        )


def _of_a_stuck_watchdog(case: Case) -> Iterator[Hypothesis]:
    """NCCL's own thread hangs: what it hangs in, only native stacks tell."""
    native = collecting.stacks(case.cell).replace("py-spy dump", "py-spy dump --native")
    yield Hypothesis(
        cls="gil_held_native_call",
        because="the watchdog may need the interpreter lock, and a native call that keeps it stops the watchdog too",
        collect="the native stacks of all threads of that rank while it hangs",
        command=native,
    )
    yield Hypothesis(
        cls="gpu_kernel_hang",
        because="a call of CUDA's in the watchdog does not return while the device is stuck",
        collect="the host's kernel log, for Xid errors",
        command=collecting.kernel_log(case.cell),
    )
    yield Hypothesis(
        cls="missing_rank",
        because="peers that wait for each other stop in the same way, and their own timeouts were not reached",
        collect="the flight recorder's dumps of all ranks",
        command=collecting.recorders(case.cell),
    )


def _of_other_dumps(case: Case) -> Iterator[Hypothesis]:
    """Some dumps, in which nothing waits."""
    cell = case.cell
    seen = tuple(rank.rank for rank in cell.ranks)
    one = len(seen) == 1
    yield Hypothesis(
        cls="missing_rank",
        because=f"{these(seen)} {'waits' if one else 'wait'} in no call, as {'a rank does' if one else 'ranks do'} that the others wait for",
        collect="the dumps of the other ranks, into the same directory",
        command=collecting.recorders(cell),
    )
    yield Hypothesis(
        cls="healthy",
        because="between two steps nothing is pending on any rank",
        collect="the stacks of all ranks, twice",
        command=collecting.stacks(cell),
    )


def _lost_a_peer(cell: CellEvidence) -> list[int]:
    """Ranks with an error that tells of a peer that is gone."""
    return [
        b.rank.rank
        for b in breaks(cell)
        if (e := b.rank.exception) and b.follows_a_peer and not is_cut(first_of(e))
    ]


def _says_network(case: Case, rank: int) -> bool:
    """Whether the error is of NCCL's transport, and names no cause."""
    raised = case.cell.rank(rank).exception
    root = first_of(raised) if raised else None
    row = cause_in(root) if root else None
    return root is not None and (row is None or not row.means) and "nccl" in root.message.lower()
