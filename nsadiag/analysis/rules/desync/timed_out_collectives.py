"""A collective that timed out while a live member of its group was still at work elsewhere: late, not stuck."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import Break, earliest_failure, first_break
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.records import Collective, Place, Strength, Where

LIMIT = re.compile(r"timed out (waiting|after)|wait timeout|exceed(ed)? timeout", re.IGNORECASE)


def timed_out(case: Case) -> Iterator[Draft]:
    """By the recorders: the waiting rank called the collective from Python, and the missing one never did."""
    broke = earliest_failure(case.cell)
    if (
        is_still(case.cell)
        or first_break(case.cell) is not None
        or broke is None
        or broke.kind != "exception"
    ):
        return
    raised = first_of(broke.rank.exception or NOT_RAISED)
    if not LIMIT.search(raised.message) or failed_in_transfer(broke.rank):
        return
    call = _open_call(case, broke.rank.rank)
    if call is None:
        return
    late = _late(case, call)
    if late:
        yield _finding(case.cell, broke, call, late)


def _open_call(case: Case, rank: int) -> pd.Series | None:
    """The rank's last call; a call that raised an exception has an end too."""
    mine = case.asked[case.asked["rank"] == rank]
    return None if mine.empty else mine.iloc[-1]


def _late(case: Case, call: pd.Series) -> tuple[int, ...]:
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


def _was_at(cell: CellEvidence, number: int, begin_s: float, end_s: float) -> Place | None:
    """The rank's line by the samples of that time; a snapshot may be older."""
    began_ns = cell.started_mono_ns
    samples = [
        sample
        for sample in cell.rank(number).samples
        if begin_s <= (sample.t_mono_ns - began_ns) / 1e9 <= end_s
    ]
    # The last one: the first may precede that work.
    return locations.most_seen(samples[-1:])


def _finding(cell: CellEvidence, broke: Break, call: pd.Series, late: tuple[int, ...]) -> Draft:
    waited_s = broke.t_s - float(call.begin_s)
    here = _was_at(cell, late[0], float(call.begin_s), broke.t_s)
    at = f" Meanwhile it was at {locations.short(here)}." if here else ""
    word = "Rank" if len(late) == 1 else "Ranks"
    source = cell.rank(late[0]).source
    return Draft(
        outcome="crashed",
        strength=Strength.STRONG if here else Strength.WEAK,
        summary=f"{word} {cell.names(late)} had not reached {call.op} #{call.call} of {call.group} when it timed out on rank {broke.rank.rank}, after {waited_s:.0f} s.{at}",
        guilty_ranks=late,
        blocked_ranks=all_but(cell, late),
        where=Where(
            collective=Collective(op=str(call.op), group=str(call.group), seq=int(call.call)),
            step=cell.rank(late[0]).end.steps,
        ).at(here),
        peers_at=locations.of_text(str(call.place)),
        evidence={
            f"rank {broke.rank.rank} gave up at {broke.t_s:.1f} s: {headline(first_of(broke.rank.exception or NOT_RAISED))}": f"{broke.rank.source}/exception.json",
            f"rank {late[0]} never called it, and was in no other call": f"{source}/blackbox.bin",
            **(
                {f"where it was while rank {broke.rank.rank} waited": f"{source}/samples.jsonl"}
                if here
                else {}
            ),
        },
        fix="Divide that work among the ranks, or do it where no rank waits for it; if it has to take so long, raise init_process_group(timeout=...).",
    )
