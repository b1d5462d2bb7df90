"""Ranks of one group that timed out at different numbers: some are still in a call that others have left behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import BARRIER_NOTE, PendingCall, is_barrier, is_still, waits
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.phrases import are, call_name, has_have
from nsadiag.evidence.records import Collective, Strength, Where
from nsadiag.evidence.table import Row

CLEAR = 3  # as many times more ranks on one side: the other is the exception
MOST_CITED = 4


@dataclass(frozen=True, kw_only=True)
class NumberedSide:
    """Ranks of a group that wait in calls of one number."""

    ranks: tuple[int, ...]
    call: Row  # of the first of them

    @property
    def is_at_barrier(self) -> bool:
        return is_barrier(self.call)

    @property
    def asked(self) -> tuple[str, str]:
        return str(self.call.op), str(self.call.input_sizes)


def out_of_step(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        return
    for wait in waits(case):
        if not wait.completed or wait.missing:
            continue
        if not all(is_of_a_log(case.cell.rank(rank)) for rank in wait.completed):
            rank = wait.completed[0]
            yield Declined(
                f"rank {rank} completed {call_name('call', wait.seq, wait.group)}, and its dump shows which call that was",
                wait.source(case.cell, wait.waiting[0]),
            )
            continue
        yield _draft(case, wait)


def _draft(case: Case, wait: PendingCall) -> Draft:
    cell = case.cell
    behind = NumberedSide(ranks=wait.waiting, call=wait.call_of(wait.waiting[0]))
    ahead = _furthest(case, wait)
    sides = sorted((behind, ahead), key=lambda side: len(cell.everyone(side.ranks)))
    few, many = (len(cell.everyone(side.ranks)) for side in sides)
    guilty = sides[0] if few < many else ahead if _left_for_a_barrier(behind, ahead) else behind
    victims = ahead if guilty is behind else behind
    differ = behind.asked != ahead.asked
    # In calls of two kinds either may be where it should not: only a clue names one of two equal sides.
    blamed = () if differ and few == many and guilty is behind else guilty.ranks
    first, then = _name(behind, wait.group), _name(ahead, wait.group)
    seen = len(cell.everyone((*behind.ranks, *ahead.ranks)))
    return Draft(
        cls="collective_order_mismatch" if differ else "missing_rank",
        strength=Strength.LIKELY if many >= CLEAR * few else Strength.WEAK,
        summary=(
            f"{named(cell, behind.ranks).capitalize()} {are(cell.everyone(behind.ranks))} still in {first}, which {named(cell, ahead.ranks)} "
            f"{has_have(cell.everyone(ahead.ranks))} left behind and {_waits(case, ahead)} in {then}: the ranks no longer issue the same calls, and {_why(case, guilty, behind, few, many)}."
        ),
        guilty_ranks=blamed,
        blocked_ranks=victims.ranks if blamed else tuple(sorted((*behind.ranks, *ahead.ranks))),
        where=Where(collective=_collective(guilty.call, wait.group)),
        evidence={**_timed_out(case, behind, wait.group), **_timed_out(case, ahead, wait.group)},
        gaps=(
            f"nothing tells what {named(cell, ahead.ranks)} issued under #{wait.seq}: the log has the call that timed out on each rank, and no other",
        ),
        fix=f"In {seen} ranks' lines no network fault shows: it would hold all of them in one call. Find what {named(cell, guilty.ranks)} {'does' if len(guilty.ranks) == 1 else 'do'} that the others do not: a save, an evaluation or a logging call with collectives under a condition.",
        actions=("fix code",) if differ else ("stop",),
        next="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 <the same command>, then: nsadiag analyze <the dumps>",
    )


def _furthest(case: Case, wait: PendingCall) -> NumberedSide:
    """The ranks that are past the call, with what the first of them waits in."""
    rows = case.calls[(case.calls.group == wait.group) & case.calls.pending.astype(bool)]
    mine = {rank: rows[rows["rank"] == rank] for rank in wait.completed}
    first = next((found for found in mine.values() if len(found)), None)
    call = first.sort_values("seq").iloc[0] if first is not None else wait.call_of(wait.waiting[0])
    return NumberedSide(ranks=wait.completed, call=call)


def _left_for_a_barrier(behind: NumberedSide, ahead: NumberedSide) -> bool:
    """Whether those ahead have gone to a barrier from what the others are still at."""
    return ahead.is_at_barrier and not behind.is_at_barrier


def _why(case: Case, guilty: NumberedSide, behind: NumberedSide, few: int, many: int) -> str:
    who = named(case.cell, guilty.ranks)
    if few < many:
        where = "behind" if guilty is behind else "ahead"
        return f"{who} {are(case.cell.everyone(guilty.ranks))} {where} of the {many:,} others"
    if guilty is behind:
        return f"of as many on either side {who} {are(case.cell.everyone(guilty.ranks))} behind"
    return f"{who} went on to a barrier without it"


def _waits(case: Case, side: NumberedSide) -> str:
    return "now waits" if len(case.cell.everyone(side.ranks)) == 1 else "now wait"


def _name(side: NumberedSide, group: str) -> str:
    call = call_name(str(side.call.op), int(side.call.seq), group)
    return call + BARRIER_NOTE if side.is_at_barrier else call


def _collective(call: Row, group: str) -> Collective:
    return Collective(
        op=str(call.op), group=group, seq=int(call.seq), sizes=call.input_sizes, dtypes=call.input_dtypes
    )


def _timed_out(case: Case, side: NumberedSide, group: str) -> Claims:
    """The line of the log of each of them."""
    rows = case.calls[(case.calls.group == group) & case.calls.pending.astype(bool)]
    found: Claims = {}
    for rank in side.ranks[:MOST_CITED]:
        mine = rows[rows["rank"] == rank]
        if not len(mine):
            continue
        call = mine.sort_values("seq").iloc[0]
        last = case.issued[group][rank]
        claim = f"rank {rank} timed out in {call.op} #{call.seq}, with #{last} the last that it had issued"
        source = next(c for c in reversed(case.cell.rank(rank).captures) if c.flight_recorder).source
        found[claim] = f"{source}/fr.json#entries[{call.position}]"
    return found


RULE = Rule(
    concludes=("collective_order_mismatch", "missing_rank"),
    about="collected",
    family="waiting",
    detected="By what NCCL's watchdog says in a log: ranks of one group timed out in calls of different numbers, so that some are past a call in which others still wait. A network fault would hold all of them in one call. The smaller side is named; of two equal ones those that went on to a barrier (an all_reduce of one element), or those that are behind in calls of one kind; in calls of two kinds nobody.",
    fix="Let all ranks issue the same collectives in the same order.",
    actions=("stop",),
    check=out_of_step,
    explained_by=("missing_rank", "collective_order_mismatch"),
    confused_with=("network_stall", "missing_rank", "gpu_kernel_hang"),
)
