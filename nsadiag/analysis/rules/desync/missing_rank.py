"""A live rank that never issued a collective in which its peers wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import Break, earliest_failure, first_break
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.relations.pending import PendingCall, is_still, waits
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.drafts import at_line, last_look, named, recorder_dump, recorder_of
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.phrases import are, call_name, group_name, these, waits_wait
from nsadiag.evidence.records import Collective, Place, Strength, Where
from nsadiag.evidence.table import Row

LIMIT = re.compile(
    r"timed out (waiting|after)|wait timeout|exceed(ed)? timeout|failed to pass monitoredBarrier in",
    re.IGNORECASE,
)
MAJORITY = 3  # as many times more ranks did not come than came
MOST_CITED = 4
EXTERNAL = ("socket", "pipe", "process", "sleep", "signal")


def missing_rank(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from timed_out(case)
        yield from not_still(case.cell)
        return
    if case.calls.empty:
        yield from _by_stacks(case.cell)
    alive = [(w, tuple(r for r in w.missing if was_alive(case.cell.rank(r).end))) for w in waits(case)]
    found = [
        (wait, missing) for wait, missing in alive if missing and not _may_be_cut_off(case, wait, missing)
    ]
    roots = {*case.once(graph_of).roots()}
    # Whoever waits for nobody explains the others.
    found.sort(key=lambda each: (not roots & {*each[1]}, -len(case.cell.everyone(each[0].waiting))))
    for wait, missing in found[:1]:
        yield (
            _few_came(case, wait, missing)
            if _most_did_not_come(case.cell, wait, missing)
            else _draft(case, wait, tuple(r for r in missing if r in roots) or missing, found[1:])
        )
    for wait, missing in alive:
        if not missing:
            yield _nobody_missing(case, wait)
        elif _may_be_cut_off(case, wait, missing):
            yield Declined(
                f"{these(missing)} reported no timeout, and may have been ended before {'its' if len(missing) == 1 else 'their'} own, by {these(wait.waiting)}",
                wait.source(case.cell, wait.waiting[0]),
            )


def _may_be_cut_off(case: Case, wait: PendingCall, missing: tuple[int, ...]) -> bool:
    """Whether too many of those that reported no timeout in a log had no time to: the first to time out end the job."""
    silent = all(_is_silent_in_log(case, wait, rank) for rank in missing)
    # Of a few that were heard of at all, one that is silent says no more than one that is not.
    few = bool(case.cell.absent)
    return silent and len(missing) + few > len(wait.waiting)


def _nobody_missing(case: Case, wait: PendingCall) -> Declined:
    call = call_name("call", wait.seq, wait.group)
    fact = f"no rank is missing from {call}, in which {these(wait.waiting)} {waits_wait(wait.waiting)}"
    if wait.missing:
        fact = f"{these(wait.missing)}, which never issued {call}, had ended"
    return Declined(fact, wait.source(case.cell, wait.waiting[0]))


def _most_did_not_come(cell: CellEvidence, wait: PendingCall, missing: tuple[int, ...]) -> bool:
    """Whether those who came are the exception, as far as calls alone show: no stack tells what the others do."""
    seen = any(capture.stacks for rank in missing for capture in cell.rank(rank).captures)
    return not seen and len(cell.everyone(missing)) >= MAJORITY * len(cell.everyone(wait.waiting))


def _few_came(case: Case, wait: PendingCall, absent: tuple[int, ...]) -> Draft:
    cell, first = case.cell, wait.waiting[0]
    call = call_name(wait.collective(first).op, wait.seq, wait.group)
    last = case.last_issued(wait.group, absent[0])
    return Draft(
        cls="rank_conditional_collective",
        strength=Strength.WEAK,
        summary=f"Only {named(cell, wait.waiting)} issued {call}; {len(cell.everyone(absent)):,} of {cell.world_size:,} ranks never did.",
        guilty_ranks=wait.waiting,
        at=wait.issued_at(cell, first),
        where=Where(collective=wait.collective(first)),
        evidence={
            f"rank {first} issued {call}, and it is not complete": wait.source(cell, first),
            f"rank {absent[0]} never issued it: its last in {group_name(wait.group)} is #{last}": recorder_dump(
                cell, absent[0]
            ),
        },
        gaps=("no stacks: the others may only be late",),
        fix="Let every rank of the group issue it, or none: a branch on the rank before that line is the usual cause.",
    )


def _draft(
    case: Case, wait: PendingCall, missing: tuple[int, ...], others: list[tuple[PendingCall, tuple[int, ...]]]
) -> Draft:
    cell, guilty, blocked = case.cell, missing[0], wait.waiting[0]
    collective = wait.collective(blocked)
    here = locations.of_rank_now(cell.rank(guilty))
    besides = _besides(case, missing, others)
    # Of a group of which most members are missing, it may be the others that should not be there.
    sure = (here or cell.collected) and len(missing) <= len(wait.waiting)
    call = call_name(collective.op, wait.seq, wait.group)
    it_is = (
        f" {named(cell, missing[:1]).capitalize()} {are(cell.everyone(missing[:1]))}{at_line(here)}."
        if here
        else ""
    )
    last_at = None if here else _last_call_at(case, guilty)
    if last_at:
        it_is = f" Its last call was{at_line(last_at)}."
    nor = "".join(
        f"; nor did {named(cell, ranks)} reach {_call(other)}, in which {named(cell, other.waiting)} {waits_wait(cell.everyone(other.waiting))}"
        for other, ranks in besides
    )
    by_log = not here and all(_is_silent_in_log(case, wait, rank) for rank in missing)
    never, waiting = named(cell, missing).capitalize(), named(cell, wait.waiting)
    summary = f"{never} never reached {call}; {waiting} {are(cell.everyone(wait.waiting))} waiting in it{nor}.{it_is}"
    if by_log:
        summary = f"{never} reported no timeout, while {waiting} timed out in {call}{wait.barrier_note}{nor}.{it_is}"
    return Draft(
        strength=Strength.LIKELY if by_log or not sure else _strength(case, guilty),
        summary=summary,
        guilty_ranks=tuple(sorted({*missing, *(r for _, ranks in besides for r in ranks)})),
        blocked_ranks=wait.waiting if not besides else None,
        at=here or last_at,
        where=Where(collective=collective),
        peers_at=locations.of_rank_now(cell.rank(blocked)) or wait.issued_at(cell, blocked),
        evidence={
            f"rank {blocked} issued {call}, and it is not complete": wait.source(cell, blocked),
            **{_never_issued(case, wait, rank): recorder_dump(cell, rank) for rank in missing[:MOST_CITED]},
            **_at_the_same_line(case, guilty),
            **{
                f"rank {other.waiting[0]} issued {_call(other)}, and it is not complete": other.source(
                    cell, other.waiting[0]
                )
                for other, _ in besides[:MOST_CITED]
            },
            **last_look(cell),
        },
        gaps=()
        if here
        else (
            f"no stack of {named(cell, missing)}: what {'it does' if len(missing) == 1 else 'they do'} now is not known",
        ),
    )


def _call(wait: PendingCall) -> str:
    return call_name(wait.collective(wait.waiting[0]).op, wait.seq, wait.group)


def _besides(
    case: Case, missing: tuple[int, ...], others: list[tuple[PendingCall, tuple[int, ...]]]
) -> list[tuple[PendingCall, tuple[int, ...]]]:
    """Calls that wait for other ranks which wait for nobody, each rank once."""
    roots, named_ = {*case.once(graph_of).roots()}, {*missing}
    if not roots & named_:
        return []
    found = []
    for wait, absent in others:
        fresh = tuple(r for r in absent if r in roots and r not in named_)
        named_.update(fresh)
        found += [(wait, fresh)] if fresh else []
    return found


def _never_issued(case: Case, wait: PendingCall, rank: int) -> str:
    if _is_silent_in_log(case, wait, rank):
        return f"rank {rank} wrote in the log, and no line of its tells of a call of {group_name(wait.group)} that timed out"
    if case.cell.collected and not case.issued.get(wait.group, {}).get(rank):
        return f"rank {rank} has no call of {group_name(wait.group)} on record that is not complete"
    return f"rank {rank} never issued it: its last in {group_name(wait.group)} is #{case.last_issued(wait.group, rank)}"


def _is_silent_in_log(case: Case, wait: PendingCall, rank: int) -> bool:
    """Whether nothing is known of the rank's calls but that the watchdog did not complain of them."""
    return is_of_a_log(case.cell.rank(rank)) and not case.issued.get(wait.group, {}).get(rank)


def _at_the_same_line(case: Case, rank: int) -> Claims:
    at = case.thread_states.get(rank)
    if at is None or not at.same:
        return {}
    return {f"rank {rank} was at the same line in both snapshots": _captured(case.cell, rank)}


def _last_call_at(case: Case, rank: int) -> Place | None:
    """The line of the newest call in its dump, whatever the group."""
    mine = case.calls[case.calls["rank"] == rank]
    return mine.sort_values("position").iloc[-1].place if len(mine) else None


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


def _captured(cell: CellEvidence, number: int) -> str:
    rank = cell.rank(number)
    return f"{rank.last_capture.source if rank.last_capture else rank.source}/py_spy.json"


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
    twice = ", in both snapshots" if min(len(r.captures) for r in cell.ranks) > 1 else ""
    yield Draft(
        strength=Strength.WEAK,
        summary=f"{named(cell, [guilty]).capitalize()} is elsewhere{at_line(here)}, while {named(cell, waiting)} {waits_wait(cell.everyone(waiting))} in {op}.",
        guilty_ranks=(guilty,),
        at=here,
        peers_at=locations.of_rank_now(cell.rank(blocked)),
        evidence={
            f"rank {blocked} and the others wait in {op}{twice}": _captured(cell, blocked),
            f"rank {guilty} is at a line without a collective{twice}": _captured(cell, guilty),
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
    concludes=("missing_rank", "rank_conditional_collective"),
    needs=("flight_recorders", "stacks"),
    explained_by=("collective_order_refused",),
    confused_with=("straggler_rank", "local_lock_deadlock", "rank_killed"),
)
