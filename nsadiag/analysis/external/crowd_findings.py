"""Findings from the dumps of all ranks, for evidence without a stack, traceback or exit that says more: the ranks that others wait for."""

from __future__ import annotations

from nsadiag.analysis.external.agreeing import in_flight, late, stalled, without_a_dump
from nsadiag.analysis.external.frontier import behind, of_all_members
from nsadiag.analysis.external.load import Foreign
from nsadiag.analysis.external.view import SHOWN, Asked, View, blocked_by, ranks_first, ranks_text
from nsadiag.analysis.facts.locations import short
from nsadiag.evidence.records import Evidence, Finding, Rejected, Strength

MAJORITY = 3  # as many times more ranks did not come than came


def crowd_finding(foreign: Foreign) -> Finding | None:
    """The first thing that explains why ranks wait; None where no dump shows anyone waiting."""
    if not foreign.close_up.meetings:
        return None
    view = View(foreign, foreign.close_up.meetings[0])
    meeting = view.meeting
    if meeting.odd:
        return _disagreement(view)
    stuck = [each for m in foreign.close_up.behind if of_all_members(each := View(foreign, m))]
    if stuck:
        return behind(stuck)
    if (meeting.missing or meeting.late) and view.is_young:
        return in_flight(view)
    if meeting.missing:
        return _missing(view)
    if meeting.late:
        return late(view)
    if meeting.unseen and len(meeting.unseen) < len(meeting.waiting):
        return without_a_dump(view)
    return stalled(view)


def _missing(view: View) -> Finding:
    meeting = view.meeting
    held_up = view.crowd.held_up_elsewhere(meeting)
    guilty = tuple(r for r in meeting.missing if r not in held_up)
    if not guilty:
        return _cycle(view)
    if len(guilty) >= MAJORITY * len(meeting.waiting):
        return _few_came(view, guilty)
    elsewhere = view.crowd.missing_elsewhere(meeting) if all(map(view.crowd.idle, guilty)) else ()
    first, guilty = guilty, tuple(sorted({*guilty, *(r for _, ranks in elsewhere for r in ranks)}))
    peers, last = view.first_waiting, view.last(guilty[0])
    newest = view.newest(guilty[0])
    seen = newest or last
    here = seen.place if seen else None
    left = f" It was last seen at {short(here)}." if here else ""
    evidence = view.waiting_evidence(peers)
    for rank in guilty[:SHOWN]:
        own = view.last(rank)
        claim = _never_issued(view, rank, own)
        evidence.append(Evidence(claim=claim, source=own.source if own else view.file_of(rank)))
    others = [View(view.foreign, other) for other, _ in elsewhere]
    evidence += [e for each in others[:SHOWN] for e in each.waiting_evidence(each.first_waiting)]
    nor = "".join(
        f"; nor did {ranks_text(ranks)} join {each.name(each.first_waiting)}, in which {len(each.meeting.waiting):,} wait"
        for each, (_, ranks) in zip(others[:SHOWN], elsewhere, strict=False)
    )
    return view.finding(
        cls="missing_rank",
        strength=_sure_of_missing(view, guilty),
        summary=f"{ranks_first(first)} never joined {view.name(peers)}, in which {len(meeting.waiting):,} of {view.world:,} ranks wait{nor}.{left}",
        guilty_ranks=guilty,
        at=peers,
        where=view.where(peers).at(here),
        peers_at=peers.place if peers else None,
        evidence=tuple(evidence),
        ruled_out={
            "collective_order_mismatch": f"none of the dumps holds another operation under the number of {view.name(peers)}",
            "straggler_rank": f"{ranks_text(guilty)} never issued it, while a slow rank issues it late on its GPU alone",
        },
        gaps=(
            f"no stack of {ranks_text(guilty)}: the line is where it issued its last collective, what it does now is not known",
        ),
        fix="Find what keeps the rank from that collective: look at what follows the line shown, and at branches on rank or data before it.",
    )


def _few_came(view: View, absent: tuple[int, ...]) -> Finding:
    """Most ranks did not: then it is those who came that left the common path."""
    meeting, first = view.meeting, view.first_waiting
    last = view.last(absent[0])
    evidence = view.waiting_evidence(first)
    if last:
        claim = f"{ranks_text(absent)} never did: the last of rank {last.rank} in {meeting.group.name} is {last.entry['collective_seq_id']}"
        evidence.append(Evidence(claim=claim, source=last.source))
    return view.finding(
        cls="rank_conditional_collective",
        strength=Strength.WEAK,
        summary=f"Only {ranks_text(meeting.waiting)} issued {view.name(first)}; {len(absent):,} of {view.world:,} ranks never did.",
        guilty_ranks=meeting.waiting,
        at=first,
        peers_at=last.place if last else None,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"{len(absent):,} of {view.world:,} ranks did not come: {len(meeting.waiting):,} that came are the exception",
        },
        gaps=("no stacks: the others may only be late",),
        fix="Let every rank of the group issue it, or none: a branch on the rank before that line is the usual cause.",
    )


def _sure_of_missing(view: View, guilty: tuple[int, ...]) -> Strength:
    if view.by_watchdog(guilty[0]):
        return Strength.WEAK  # it may also have been too late to say anything
    return Strength.STRONG if len(guilty) < len(view.meeting.waiting) or len(guilty) == 1 else Strength.LIKELY


def _never_issued(view: View, rank: int, own: Asked | None) -> str:
    if view.crowd.idle(rank) and own is None:
        return f"rank {rank} has nothing pending in any group: all that its host enqueued is over"
    if view.by_watchdog(rank):
        return f"rank {rank} writes nothing of a timeout, as the others do"
    last = own.entry["collective_seq_id"] if own else "none"
    return f"rank {rank} never issued it: its last in {view.meeting.group.name} is {last}"


def _cycle(view: View) -> Finding:
    """Everyone who is waited for waits in another group, for someone who waits here."""
    meetings = view.foreign.close_up.meetings
    ranks = tuple(sorted({r for m in meetings for r in m.deviating if any(r in o.waiting for o in meetings)}))
    views = [View(view.foreign, m) for m in meetings]
    evidence = [e for v in views for e in v.waiting_evidence(v.first_waiting)]
    said = "; ".join(f"{ranks_text(v.meeting.waiting)} in {v.name(v.first_waiting)}" for v in views)
    here = view.first_waiting
    return view.finding(
        cls="collective_order_mismatch",
        strength=Strength.LIKELY,
        summary=f"Groups wait for each other in a circle: {said}.",
        guilty_ranks=ranks,
        at=here,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"each of {ranks_text(ranks)} waits in another group itself: {said}",
        },
        fix="Let all ranks take the groups in the same order.",
    )


def _disagreement(view: View) -> Finding:
    meeting = view.meeting
    everyone = len(meeting.odd) >= len(meeting.waiting) and not meeting.conforming
    odd = next((a for r in meeting.odd if (a := view.asked(r))), None)
    others = next(
        (a for r in view.foreign.close_up.documents if r not in meeting.odd and (a := view.asked(r))), None
    )
    if others is None and odd is not None:
        others = next(
            (a for r in meeting.odd if (a := view.asked(r)) and (a.op, a.shape) != (odd.op, odd.shape)), odd
        )
    assert odd is not None and others is not None
    order = odd.op != others.op
    mine, theirs = (odd.op, others.op) if order else (odd.shape, others.shape)
    what = f"collective #{meeting.seq} of {meeting.group.name}" if order else view.name(odd)
    verb = "issued" if order else "brought"
    rest = "the others" if not everyone else ranks_text((others.rank,))
    late = f" {ranks_first(meeting.missing)} issued none at all." if meeting.missing else ""
    named = [others, *(a for r in meeting.odd[:SHOWN] if (a := view.asked(r)) and a.rank != others.rank)]
    evidence = [
        Evidence(claim=f"rank {a.rank} issued {a.op} {a.shape} as #{meeting.seq}", source=a.source)
        for a in named
    ]
    return view.finding(
        cls="collective_order_mismatch" if order else "collective_args_mismatch",
        strength=Strength.CONCLUSIVE if len(meeting.odd) < len(meeting.conforming) else Strength.WEAK,
        summary=f"{ranks_first((odd.rank,) if everyone else meeting.odd)} {verb} {mine} as {what}, {rest} {theirs}; {len(blocked_by(view, meeting.odd)):,} of {view.world:,} ranks wait.{late}",
        guilty_ranks=meeting.odd,
        at=odd,
        peers_at=others.place,
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="collective_args_mismatch" if order else "collective_order_mismatch",
                because=f"{ranks_text((odd.rank, others.rank))} issued {f'{odd.op} and {others.op}' if order else f'the same operation, {odd.op}'}",
            ),
            Rejected(
                cls="missing_rank",
                because=f"rank {odd.rank} issued {odd.op} as #{meeting.seq}",
                source=odd.source,
            ),
        ),
        next=None,
        gaps=("no majority: nothing shows which of them is wrong",) if everyone else (),
        fix="Make all ranks issue the same collectives in the same order; a branch on rank or data before the line shown is the usual cause."
        if order
        else "Let all ranks bring the same sizes and types: pad the last batch, or agree on the size first.",
    )
