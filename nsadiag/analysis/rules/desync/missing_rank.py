"""Peers wait in a collective that a live rank of the group never issued, or for a rank that somebody has stopped."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.pending import Wait, is_still, waits
from nsadiag.analysis.rules.blocked.event_loop import now_awaits
from nsadiag.analysis.rules.desync.timed_out_collectives import timed_out
from nsadiag.analysis.rules.drafts import at_line, last_look
from nsadiag.analysis.rules.reasons import not_still, these
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Strength, Where

OF_THE_WORLD = ("socket", "pipe", "process", "sleep", "signal")
STOPPED = ("T", "t")  # by a signal, by a debugger


def _evidence(case: Case, wait: Wait, guilty: int, seen_from: int) -> Claims:
    op = wait.collective(seen_from).op
    look = case.cell.watch.looks[-1]
    last = case.last_issued(wait.group, guilty)
    rank = case.cell.rank(guilty)
    capture = rank.last_capture.source if rank.last_capture else rank.source
    return {
        f"rank {seen_from} issued {op} #{wait.seq} of {wait.group}, and it is not complete": wait.source(
            case.cell, seen_from
        ),
        f"rank {guilty} never issued it: its last in {wait.group} is #{last}": f"{capture}/fr.json",
        f"rank {guilty} was at the same line in both snapshots": f"{capture}/py_spy.json",
        look.reason: "watch.json#looks",
    }


def _waiting(cell: CellEvidence, wait: Wait) -> str:
    everyone = cell.everyone(wait.waiting)
    return f"rank{'s' if len(everyone) > 1 else ''} {cell.names(everyone)} {'are' if len(everyone) > 1 else 'is'}"


def _strength(case: Case, guilty: int) -> Strength:
    """Less where it waits for peers itself, and not all of those could be looked at: one of them may be the cause.

    And where it waits for the world, and not for long: that it has not come is certain, that it never will is not.
    """
    at = case.thread_states.get(guilty)
    if at is not None and at.doing in OF_THE_WORLD and is_short(case.cell):
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
        awaited = now_awaits(case.cell.rank(guilty))
        here = awaited[0] if awaited else locations.of_rank_now(case.cell.rank(guilty))
        peers_at = locations.of_rank_now(case.cell.rank(blocked))
        collective = wait.collective(blocked)
        waits_for = f", awaiting {awaited[1]}" if awaited else ""
        at = f" It is at {locations.short(here)}{waits_for}." if here else ""
        yield Draft(
            strength=_strength(case, guilty) if here else Strength.LIKELY,
            summary=f"Rank {case.cell.names(alive)} never reached {collective.op} #{wait.seq} of {wait.group}; {_waiting(case.cell, wait)} waiting in it.{at}",
            guilty_ranks=alive,
            blocked_ranks=wait.waiting,
            where=Where(collective=collective, step=case.cell.rank(guilty).end.steps).at(here),
            peers_at=peers_at,
            evidence={
                **_evidence(case, wait, guilty, blocked),
                **({f"rank {guilty} awaits {awaited[1]}": awaited[2]} if awaited else {}),
            },
            fix="Let every rank of the group issue the same collectives: find what keeps this rank at the line shown, or what let it pass by.",
        )


def stopped_rank(case: Case) -> Iterator[Draft | Declined]:
    """A rank that is stopped does nothing at all until it is continued, whatever it was about."""
    if not is_still(case.cell):
        yield from not_still(case.cell)
        return
    # Earlier looks may have been at a rank that went on.
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
        summary=f"Rank {case.cell.names(stopped)} is stopped by {by}{at} and executes nothing, while {len(case.cell.everyone(running))} of {case.cell.world_size} ranks go on to wait for it.",
        guilty_ranks=stopped,
        blocked_ranks=running,
        where=Where(step=guilty.end.steps).at(here),
        peers_at=locations.of_rank_now(case.cell.rank(running[0])),
        evidence={
            f"the kernel shows rank {stopped[0]} as stopped (state {last.proc.state}) in every snapshot": f"{last.source}/proc.json",
            **last_look(case.cell),
        },
        fix=f"Find who stopped it: a batch system that suspends jobs, a throttle such as cpulimit, a debugger. `kill -CONT {pid or 'PID'}` lets it go on."
        if by == "SIGSTOP"
        else "Detach the debugger or tracer that holds it (TracerPid in /proc/PID/status).",
    )


def _by_stacks(cell: CellEvidence) -> Iterator[Draft]:
    """Without a flight recorder: all ranks but one wait in the same call into torch.distributed, at the same line."""
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
    sources = {r: cell.rank(r).last_capture for r in (guilty, blocked)}
    yield Draft(
        strength=Strength.WEAK,
        summary=f"Rank {cell.names((guilty,))} is elsewhere while {len(cell.everyone(waiting))} of {cell.world_size} ranks wait in {op}. It is at {locations.short(here)}.",
        guilty_ranks=(guilty,),
        blocked_ranks=tuple(sorted(waiting)),
        where=Where().at(here),
        peers_at=peers_at,
        evidence={
            **{
                claim: f"{sources[r].source}/py_spy.json"  # type: ignore[union-attr]
                for r, claim in (
                    (blocked, f"rank {blocked} and its like wait in {op}, in both snapshots"),
                    (guilty, f"rank {guilty} is at a line that calls no collective, in both snapshots"),
                )
            },
            **last_look(cell),
        },
        gaps=(
            "no flight recorder: which collective it is, and who issued what, is read off the stacks alone",
        ),
        fix="Let every rank of the group issue the same collectives: find what keeps this rank at the line shown, or what let it pass by.",
        next="nsadiag run -- <the same command>",
    )


OF_STOPPED = Rule(
    name="stopped_rank",
    concludes=("missing_rank",),
    family="stopped",
    detected="Every snapshot of a silence shows the rank stopped by a signal or a debugger, while others run.",
    fix="Find who stopped the rank: a batch system, a throttle, a debugger. `kill -CONT` lets it go on.",
    actions=("retry",),
    check=stopped_rank,
    needs=("looks",),
    confused_with=("rank_killed", "local_lock_deadlock", "straggler_rank"),
)

RULE = Rule(
    name="missing_rank",
    concludes=("missing_rank",),
    means={
        "missing_rank": "A live rank never comes to a collective that its peers wait in, and nothing shows why."
    },
    family="waiting",
    detected="nothing moves; peers wait in a collective that a live rank of the group never issued. Without a flight recorder (`attach`), by the stacks alone: all ranks but one in the same call at the same line, with less confidence. Or a collective's own time limit passed, and a live member had not called it and waited in no other. The honest parent of the five above. Also a rank that a signal or a debugger has stopped. Of a rank that runs an event loop `where` is what its own task awaits, though others go on",
    fix="Find what keeps this rank at the line shown, or what let it pass the collective by.",
    actions=("stop",),
    check=missing_rank,
    needs=("flight_recorders", "stacks"),
    explained_by=("collective_order_refused",),
    confused_with=("straggler_rank", "local_lock_deadlock", "rank_killed"),
)
