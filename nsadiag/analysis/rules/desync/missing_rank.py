"""A live rank that never issued a collective in which its peers wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import Break, earliest_failure, first_break
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.relations.pending import Wait, is_still, waits
from nsadiag.analysis.rules.drafts import at_line, last_look, named, recorder_of
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.phrases import are, call_name, group_name, these, waits_wait
from nsadiag.evidence.records import Collective, Place, Strength, Where
from nsadiag.evidence.table import Row

LIMIT = re.compile(
    r"timed out (waiting|after)|wait timeout|exceed(ed)? timeout|failed to pass monitoredBarrier in",
    re.IGNORECASE,
)
EXTERNAL = ("socket", "pipe", "process", "sleep", "signal")


def missing_rank(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from timed_out(case)
        yield from not_still(case.cell)
        return
    if case.calls.empty:
        yield from _by_stacks(case.cell)
    for wait in waits(case):
        alive = tuple(r for r in wait.missing if was_alive(case.cell.rank(r).end))
        yield _draft(case, wait, alive) if alive and wait.waiting else _nobody_missing(case, wait)


def _nobody_missing(case: Case, wait: Wait) -> Declined:
    call = call_name("call", wait.seq, wait.group)
    fact = f"no rank is missing from {call}, in which {these(wait.waiting)} {waits_wait(wait.waiting)}"
    if wait.missing:
        fact = f"{these(wait.missing)}, which never issued {call}, had ended"
    return Declined(fact, wait.source(case.cell, wait.waiting[0]) if wait.waiting else None)


def _draft(case: Case, wait: Wait, missing: tuple[int, ...]) -> Draft:
    cell, guilty, blocked = case.cell, missing[0], wait.waiting[0]
    collective = wait.collective(blocked)
    here = locations.of_rank_now(cell.rank(guilty))
    # Of a group of which most members are missing, it may be the others that should not be there.
    sure = here and len(missing) <= len(wait.waiting)
    call = call_name(collective.op, wait.seq, wait.group)
    it_is = (
        f" {named(cell, missing[:1]).capitalize()} {are(cell.everyone(missing[:1]))}{at_line(here)}."
        if here
        else ""
    )
    last = case.last_issued(wait.group, guilty)
    return Draft(
        strength=_strength(case, guilty) if sure else Strength.LIKELY,
        summary=f"{named(cell, missing).capitalize()} never reached {call}; {named(cell, wait.waiting)} {are(cell.everyone(wait.waiting))} waiting in it.{it_is}",
        guilty_ranks=missing,
        blocked_ranks=wait.waiting,
        at=here,
        where=Where(collective=collective),
        peers_at=locations.of_rank_now(cell.rank(blocked)),
        evidence={
            f"rank {blocked} issued {call}, and it is not complete": wait.source(cell, blocked),
            f"rank {guilty} never issued it: its last in {group_name(wait.group)} is #{last}": _captured(
                cell, guilty, "fr.json"
            ),
            f"rank {guilty} was at the same line in both snapshots": _captured(cell, guilty, "py_spy.json"),
            **last_look(cell),
        },
    )


def _strength(case: Case, guilty: int) -> Strength:
    """Lower if the rank waits for peers that could not all be captured: one of them may be the cause.

    Lower also for a short wait for something external: the rank may still come; and for a message from nobody knows whom.
    """
    at = case.thread_states.get(guilty)
    if at is not None and at.doing in EXTERNAL and is_short(case.cell):
        return Strength.LIKELY
    if at is not None and at.doing == "transfer" and case.transfers.empty:
        return Strength.LIKELY
    waits_itself = at is not None and (at.waits_for_peers or at.doing == "backward")
    return Strength.WEAK if waits_itself and len(case.thread_states) < len(case.cell.met) else Strength.STRONG


def _captured(cell: CellEvidence, number: int, file: str) -> str:
    rank = cell.rank(number)
    return f"{rank.last_capture.source if rank.last_capture else rank.source}/{file}"


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
    here = locations.of_rank_now(cell.rank(guilty))
    if here is None or locations.MAY_WAIT_FOR_PEERS.search(here.code or ""):
        return
    op = waiting[blocked][0]
    yield Draft(
        strength=Strength.WEAK,
        summary=f"{named(cell, [guilty]).capitalize()} is elsewhere{at_line(here)}, while {named(cell, waiting)} {waits_wait(cell.everyone(waiting))} in {op}.",
        guilty_ranks=(guilty,),
        at=here,
        peers_at=locations.of_rank_now(cell.rank(blocked)),
        evidence={
            f"rank {blocked} and the others wait in {op}, in both snapshots": _captured(
                cell, blocked, "py_spy.json"
            ),
            f"rank {guilty} is at a line without a collective, in both snapshots": _captured(
                cell, guilty, "py_spy.json"
            ),
            **last_look(cell),
        },
        gaps=(
            "no flight recorder: which collective it is, and which rank issued what, follows from the stacks alone",
        ),
        next="nsadiag run -- <the same command>",
    )


# A collective that timed out while a live member of its group was still at work elsewhere: late, not stuck.


def timed_out(case: Case) -> Iterator[Draft]:
    """By the recorders: the waiting rank called the collective from Python, and the missing one never did."""
    broke = earliest_failure(case.cell)
    raised = broke.rank.exception if broke and broke.kind == "exception" else None
    if broke is None or raised is None or first_break(case.cell) is not None:
        return
    if not LIMIT.search(first_of(raised).message) or failed_in_transfer(broke.rank):
        return
    mine = case.asked[case.asked["rank"] == broke.rank.rank]
    # Its last call; a call that raised an exception has an end too.
    for call in mine.iloc[-1:]:
        if late := _late(case, call):
            yield _late_draft(case.cell, broke, call, late)


def _late(case: Case, call: Row) -> tuple[int, ...]:
    """Members that had not reached that call and were in no other."""
    asked = case.asked
    found = []
    for number in case.groups.members(str(call.group)):
        rank = next((r for r in case.cell.ranks if r.rank == number), None)
        if rank is None or rank.recording.header is None or rank.exception or number == call["rank"]:
            continue
        mine = asked[asked["rank"] == number]
        come = (mine.group == call.group) & (mine.call >= call.call)
        if not come.any() and not mine.end_s.isna().any():
            found.append(number)
    return tuple(sorted(found))


def _late_draft(cell: CellEvidence, broke: Break, call: Row, late: tuple[int, ...]) -> Draft:
    begin_s, raised = float(call.begin_s), headline(first_of(broke.rank.exception or NOT_RAISED))
    here = _sampled_at(cell, late[0], begin_s, broke.t_s)
    evidence = {
        f"rank {broke.rank.rank} gave up at {broke.t_s:.1f} s: {raised}": f"{broke.rank.source}/exception.json",
        f"rank {late[0]} never called it, and was in no other call": recorder_of(cell, late[0]),
    }
    if here:
        claim = f"rank {late[0]} was{at_line(here)} while rank {broke.rank.rank} waited"
        evidence[claim] = f"{cell.rank(late[0]).source}/samples.jsonl"
    meanwhile = f" Meanwhile it was{at_line(here)}." if here else ""
    return Draft(
        outcome="crashed",
        strength=Strength.STRONG if here else Strength.WEAK,
        summary=f"{named(cell, late).capitalize()} had not reached {call_name(call.op, call.call, call.group)} when it timed out on rank {broke.rank.rank}, after {broke.t_s - begin_s:.0f} s.{meanwhile}",
        guilty_ranks=late,
        at=here,
        where=Where(collective=Collective(op=str(call.op), group=str(call.group), seq=int(call.call))),
        peers_at=locations.of_text(str(call.place)),
        evidence=evidence,
        fix="Divide that work among the ranks, or do it where no rank waits for it; if it has to take so long, raise init_process_group(timeout=...).",
    )


def _sampled_at(cell: CellEvidence, number: int, begin_s: float, end_s: float) -> Place | None:
    """The rank's last sampled line of that time: a snapshot may be older, and the first sample may precede that work."""
    times = [
        (sample, (sample.t_mono_ns - cell.started_mono_ns) / 1e9) for sample in cell.rank(number).samples
    ]
    return locations.most_seen([sample for sample, t_s in times if begin_s <= t_s <= end_s][-1:])


RULE = Rule(
    means={
        "missing_rank": "A live rank never issues a collective in which its peers wait, and no more specific cause is found."
    },
    family="waiting",
    detected="Nothing moves, and peers wait in a collective that a live rank of the group never issued. Or a collective's own timeout expired while a live member had not called it and was in no other. Without a flight recorder (`attach`), all ranks but one are in the same call at the same line; the confidence is then lower. This is the generic class for a hang in a collective: all more specific ones outrank it.",
    fix="Let every rank of the group issue the same collectives: find what keeps this rank at the line shown, or what made it skip the call.",
    actions=("stop",),
    check=missing_rank,
    needs=("flight_recorders", "stacks"),
    explained_by=("collective_order_refused",),
    confused_with=("straggler_rank", "local_lock_deadlock", "rank_killed"),
)
