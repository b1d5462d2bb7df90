"""A live rank that never issued a collective in which its peers wait, or that was stopped by a signal or debugger."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.pending import Wait, is_still, waits
from nsadiag.analysis.rules.desync.timed_out_collectives import timed_out
from nsadiag.analysis.rules.drafts import at_line, last_look, named
from nsadiag.analysis.rules.reasons import not_still, these
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Strength, Where

EXTERNAL = ("socket", "pipe", "process", "sleep", "signal")
FIX = "Let every rank of the group issue the same collectives: find what keeps this rank at the line shown, or what made it skip the call."
STOPPED = ("T", "t")  # by a signal, by a debugger


def _evidence(case: Case, wait: Wait, guilty: int, seen_from: int) -> Claims:
    op = wait.collective(seen_from).op
    last = case.last_issued(wait.group, guilty)
    issued = f"rank {seen_from} issued {op} #{wait.seq} of {wait.group}, and it is not complete"
    return {
        issued: wait.source(case.cell, seen_from),
        f"rank {guilty} never issued it: its last in {wait.group} is #{last}": f"{_capture(case.cell, guilty)}/fr.json",
        f"rank {guilty} was at the same line in both snapshots": _stacks(case.cell, guilty),
        **last_look(case.cell),
    }


def _capture(cell: CellEvidence, number: int) -> str:
    rank = cell.rank(number)
    return rank.last_capture.source if rank.last_capture else rank.source


def _stacks(cell: CellEvidence, number: int) -> str:
    return f"{_capture(cell, number)}/py_spy.json"


def _waiting(cell: CellEvidence, wait: Wait) -> str:
    return f"{named(cell, wait.waiting)} {'are' if len(cell.everyone(wait.waiting)) > 1 else 'is'}"


def _strength(case: Case, guilty: int) -> Strength:
    """Lower if the rank waits for peers that could not all be captured: one of them may be the cause.

    Lower also for a short wait for something external: the rank may still come.
    """
    at = case.thread_states.get(guilty)
    if at is not None and at.doing in EXTERNAL and is_short(case.cell):
        return Strength.LIKELY
    waits_itself = at is not None and (at.waits_for_peers or at.doing == "backward")
    return Strength.WEAK if waits_itself and len(case.thread_states) < len(case.cell.met) else Strength.STRONG


def missing_rank(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from timed_out(case)
        yield from not_still(case.cell)
        return
    if case.calls.empty:
        yield from _by_stacks(case.cell)
    for wait in waits(case):
        alive = tuple(r for r in wait.missing if was_alive(case.cell.rank(r).end))
        if not alive or not wait.waiting:
            call = f"call #{wait.seq} of {wait.group}"
            seen_by = wait.source(case.cell, wait.waiting[0]) if wait.waiting else None
            yield Declined(
                f"{these(wait.missing)}, which never issued {call}, had ended"
                if wait.missing
                else f"no rank is missing from {call}, in which {these(wait.waiting)} wait",
                seen_by,
            )
            continue
        guilty, blocked = alive[0], wait.waiting[0]
        here = locations.of_rank_now(case.cell.rank(guilty))
        peers_at = locations.of_rank_now(case.cell.rank(blocked))
        collective = wait.collective(blocked)
        at = f" It is at {locations.short(here)}." if here else ""
        yield Draft(
            # Of a group of which most members are missing, it may be the others that should not be there.
            strength=_strength(case, guilty) if here and len(alive) <= len(wait.waiting) else Strength.LIKELY,
            summary=f"{named(case.cell, alive).capitalize()} never reached {collective.op} #{wait.seq} of {wait.group}; {_waiting(case.cell, wait)} waiting in it.{at}",
            guilty_ranks=alive,
            blocked_ranks=wait.waiting,
            where=Where(collective=collective, step=case.cell.rank(guilty).end.steps).at(here),
            peers_at=peers_at,
            evidence=_evidence(case, wait, guilty, blocked),
            fix=FIX,
        )


def stopped_rank(case: Case) -> Iterator[Draft | Declined]:
    """A stopped rank executes nothing until it is continued."""
    if not is_still(case.cell):
        yield from not_still(case.cell)
        return
    # Earlier snapshots may show a rank that was running.
    first = case.cell.watch.looks[-1].first
    states = {r.rank: [c.proc.state for c in r.captures if c.number >= first] for r in case.cell.ranks}
    stopped = tuple(
        r.rank
        for r in case.cell.ranks
        if states[r.rank] and was_alive(r.end) and all(state in STOPPED for state in states[r.rank])
    )
    running = tuple(sorted({r.rank for r in case.cell.ranks} - set(stopped)))
    if not stopped or not running:
        number = len(stopped)
        yield Declined(
            f"the kernel shows {number or 'none'} of {len(case.cell.ranks)} ranks as stopped in every snapshot"
        )
        return
    guilty = case.cell.rank(stopped[0])
    last = guilty.captures[-1]
    here = locations.of_rank_now(guilty)
    by = "a debugger" if last.proc.state == "t" else "SIGSTOP"
    at = at_line(here)
    pid = last.proc.pid
    yield Draft(
        strength=Strength.STRONG,
        summary=f"Rank {case.cell.names(stopped)} is stopped by {by}{at} and executes nothing, while {len(case.cell.everyone(running))} of {case.cell.world_size} ranks wait for it.",
        guilty_ranks=stopped,
        blocked_ranks=running,
        where=Where(step=guilty.end.steps).at(here),
        peers_at=locations.of_rank_now(case.cell.rank(running[0])),
        evidence={
            f"the kernel shows rank {stopped[0]} as stopped (state {last.proc.state}) in every snapshot": f"{last.source}/proc.json",
            **last_look(case.cell),
        },
        fix=f"Find what stopped it: a batch system that suspends jobs, a throttle such as cpulimit, a debugger. `kill -CONT {pid or 'PID'}` resumes it."
        if by == "SIGSTOP"
        else "Detach the debugger or tracer that holds it (TracerPid in /proc/PID/status).",
    )


def _by_stacks(cell: CellEvidence) -> Iterator[Draft]:
    """Without a flight recorder: all ranks but one are in the same torch.distributed call at the same line."""
    if cell.world_size < 2 or cell.absent:
        return
    calls = {r.rank: locations.of_wait(r.last_capture.stacks) for r in cell.ranks if r.last_capture}
    waiting = {rank: call for rank, call in calls.items() if call}
    elsewhere = [rank for rank, call in calls.items() if call is None]
    if len(elsewhere) != 1 or len(calls) < len(cell.ranks) or len(set(waiting.values())) != 1:
        return
    guilty, blocked = elsewhere[0], min(waiting)
    here, peers_at = locations.of_rank_now(cell.rank(guilty)), locations.of_rank_now(cell.rank(blocked))
    if here is None or locations.MAY_WAIT_FOR_PEERS.search(here.code or ""):
        return
    op = waiting[blocked][0]
    yield Draft(
        strength=Strength.WEAK,
        summary=f"Rank {cell.names((guilty,))} is elsewhere while {len(cell.everyone(waiting))} of {cell.world_size} ranks wait in {op}. It is at {locations.short(here)}.",
        guilty_ranks=(guilty,),
        blocked_ranks=tuple(sorted(waiting)),
        where=Where().at(here),
        peers_at=peers_at,
        evidence={
            f"rank {blocked} and the others wait in {op}, in both snapshots": _stacks(cell, blocked),
            f"rank {guilty} is at a line without a collective, in both snapshots": _stacks(cell, guilty),
            **last_look(cell),
        },
        gaps=(
            "no flight recorder: which collective it is, and which rank issued what, follows from the stacks alone",
        ),
        fix=FIX,
        next="nsadiag run -- <the same command>",
    )


OF_STOPPED = Rule(
    name="stopped_rank",
    concludes=("missing_rank",),
    family="stopped",
    detected="Every snapshot of a silence shows the rank stopped by a signal or a debugger, while others run.",
    fix="Find what stopped the rank: a batch system, a throttle, a debugger. `kill -CONT` resumes it.",
    actions=("retry",),
    check=stopped_rank,
    needs=("looks",),
    confused_with=("rank_killed", "local_lock_deadlock", "straggler_rank"),
)

RULE = Rule(
    name="missing_rank",
    means={
        "missing_rank": "A live rank never issues a collective in which its peers wait, and no more specific cause is found."
    },
    family="waiting",
    detected="Nothing moves, and peers wait in a collective that a live rank of the group never issued, or for a rank that a signal or a debugger has stopped. Or a collective's own timeout expired while a live member had not called it and was in no other. Without a flight recorder (`attach`) the stacks alone decide, at a lower confidence: all ranks but one are in the same call at the same line. This is the generic class for a hang in a collective: the more specific ones outrank it",
    fix="Find what keeps this rank at the line shown, or what made it skip the collective.",
    actions=("stop",),
    check=missing_rank,
    needs=("flight_recorders", "stacks"),
    explained_by=("collective_order_refused",),
    confused_with=("straggler_rank", "local_lock_deadlock", "rank_killed"),
)
