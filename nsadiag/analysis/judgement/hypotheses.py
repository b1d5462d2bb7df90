"""Hypotheses that fit evidence which cannot decide between them, each with the one thing to collect that would."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.facts.texts.error_causes import cause_in
from nsadiag.analysis.judgement import collecting
from nsadiag.analysis.relations.collected.camps import camps
from nsadiag.analysis.relations.pending import PendingCall, waits
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
    guess = cause.mechanism == "unseen_rank" and cause.strength.value <= OPEN.value
    undecided = cause.cls == "unknown" or guess
    if cause.mechanism == "rank_killed" and cause.cls == "rank_killed":
        yield from _of_a_kill(case, cause)
    elif undecided and (wait := next(iter(waits(case)), None)):
        yield from _of_a_call(case, wait)
    elif undecided and case.thread_states:
        yield from _of_stacks(case)
    elif (undecided and any(broke.follows_a_peer for broke in breaks(case.cell))) or (
        undecided and case.cell.unnamed
    ):
        yield from _of_a_lost_peer(case)


def _of_a_kill(case: Case, cause: Finding) -> Iterator[Hypothesis]:
    """SIGKILL says who was ended, and not by whom."""
    rank = next((r for r in case.cell.ranks if r.rank in cause.guilty_ranks), None)
    if rank is None or rank.end.signal != signal.SIGKILL:
        return
    command = collecting.kernel_log(case.cell)
    who = these(cause.guilty_ranks)
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
    heard = [broke.rank.rank for broke in breaks(cell)]
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


def _says_network(case: Case, rank: int) -> bool:
    """Whether the error is of NCCL's transport, and names no cause."""
    raised = case.cell.rank(rank).exception
    root = first_of(raised) if raised else None
    row = cause_in(root) if root else None
    return root is not None and (row is None or not row.means) and "nccl" in root.message.lower()
