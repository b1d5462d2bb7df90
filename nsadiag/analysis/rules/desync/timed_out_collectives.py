"""A collective that timed out while a live member of its group was still at work elsewhere: late, not stuck."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import Break, earliest_failure, first_break
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.rules.drafts import at_line, named, recorder_of
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.records import Collective, Place, Strength, Where
from nsadiag.evidence.table import Row

LIMIT = re.compile(
    r"timed out (waiting|after)|wait timeout|exceed(ed)? timeout|failed to pass monitoredBarrier in",
    re.IGNORECASE,
)


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
            yield _draft(case.cell, broke, call, late)


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


def _draft(cell: CellEvidence, broke: Break, call: Row, late: tuple[int, ...]) -> Draft:
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
