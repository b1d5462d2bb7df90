"""Findings from the dumps of all ranks, for evidence without a stack, traceback or exit that says more: the ranks that others wait for."""

from __future__ import annotations

from nsadiag.analysis.external.agreeing import in_flight, late, stalled, without_a_dump
from nsadiag.analysis.external.frontier import behind, of_all_members
from nsadiag.analysis.external.load import ExternalEvidence
from nsadiag.analysis.external.view import SHOWN, Asked, View, blocked_by
from nsadiag.analysis.facts.locations import short
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Evidence, Finding, Rejected, Strength

MAJORITY = 3  # as many times more ranks did not come than came


def dump_finding(external: ExternalEvidence) -> Finding | None:
    """The first thing that explains why ranks wait; None where no dump shows anyone waiting."""
    if not external.details.all_pending:
        return None
    view = View(external, external.details.all_pending[0])
    pending = view.pending
    if pending.outliers:
        return _disagreement(view)
    stuck = [each for m in external.details.behind if of_all_members(each := View(external, m))]
    if stuck:
        return behind(stuck)
    if (pending.missing or pending.late) and view.is_young:
        return in_flight(view)
    if pending.missing:
        return _missing(view)
    if pending.late:
        return late(view)
    if pending.unseen and len(pending.unseen) < len(pending.waiting):
        return without_a_dump(view)
    return stalled(view)


def _missing(view: View) -> Finding:
    pending = view.pending
    held_up = view.dumps.held_up_elsewhere(pending)
    guilty = tuple(r for r in pending.missing if r not in held_up)
    if not guilty:
        return _cycle(view)
    if len(guilty) >= MAJORITY * len(pending.waiting):
        return _few_came(view, guilty)
    elsewhere = view.dumps.missing_elsewhere(pending) if all(map(view.dumps.idle, guilty)) else ()
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
    others = [View(view.external, other) for other, _ in elsewhere]
    evidence += [e for each in others[:SHOWN] for e in each.waiting_evidence(each.first_waiting)]
    nor = "".join(
        f"; nor did {these(ranks)} reach {each.name(each.first_waiting)}, in which {len(each.pending.waiting):,} wait"
        for each, (_, ranks) in zip(others[:SHOWN], elsewhere, strict=False)
    )
    return view.finding(
        cls="missing_rank",
        strength=_sure_of_missing(view, guilty),
        summary=f"{these(first).capitalize()} never reached {view.name(peers)}, in which {len(pending.waiting):,} of {view.world:,} ranks wait{nor}.{left}",
        guilty_ranks=guilty,
        at=peers,
        where=view.where(peers).at(here),
        peers_at=peers.place if peers else None,
        evidence=tuple(evidence),
        ruled_out={
            "collective_order_mismatch": f"none of the dumps holds another operation under the number of {view.name(peers)}",
            "straggler_rank": f"{these(guilty)} never issued it, while a slow rank issues it late on its GPU alone",
        },
        gaps=(
            f"no stack of {these(guilty)}: the line is where it issued its last collective, what it does now is not known",
        ),
        fix="Find what keeps the rank from that collective: look at what follows the line shown, and at branches on rank or data before it.",
    )


def _few_came(view: View, absent: tuple[int, ...]) -> Finding:
    """Most ranks did not: then it is those who came that left the common path."""
    pending, first = view.pending, view.first_waiting
    last = view.last(absent[0])
    evidence = view.waiting_evidence(first)
    if last:
        claim = f"{these(absent)} never did: the last of rank {last.rank} in {pending.group.name} is {last.entry['collective_seq_id']}"
        evidence.append(Evidence(claim=claim, source=last.source))
    return view.finding(
        cls="rank_conditional_collective",
        strength=Strength.WEAK,
        summary=f"Only {these(pending.waiting)} issued {view.name(first)}; {len(absent):,} of {view.world:,} ranks never did.",
        guilty_ranks=pending.waiting,
        at=first,
        peers_at=last.place if last else None,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"{len(absent):,} of {view.world:,} ranks did not come: {len(pending.waiting):,} that came are the exception",
        },
        gaps=("no stacks: the others may only be late",),
        fix="Let every rank of the group issue it, or none: a branch on the rank before that line is the usual cause.",
    )


def _sure_of_missing(view: View, guilty: tuple[int, ...]) -> Strength:
    if view.by_watchdog(guilty[0]):
        return Strength.WEAK  # it may also have been too late to say anything
    return Strength.STRONG if len(guilty) < len(view.pending.waiting) or len(guilty) == 1 else Strength.LIKELY


def _never_issued(view: View, rank: int, own: Asked | None) -> str:
    if view.dumps.idle(rank) and own is None:
        return f"rank {rank} has nothing pending in any group: all that its host enqueued is over"
    if view.by_watchdog(rank):
        return f"rank {rank} writes nothing of a timeout, as the others do"
    last = own.entry["collective_seq_id"] if own else "none"
    return f"rank {rank} never issued it: its last in {view.pending.group.name} is {last}"


def _cycle(view: View) -> Finding:
    """Everyone who is waited for waits in another group, for someone who waits here."""
    all_pending = view.external.details.all_pending
    ranks = tuple(
        sorted({r for m in all_pending for r in m.deviating if any(r in o.waiting for o in all_pending)})
    )
    views = [View(view.external, m) for m in all_pending]
    evidence = [e for v in views for e in v.waiting_evidence(v.first_waiting)]
    said = "; ".join(f"{these(v.pending.waiting)} in {v.name(v.first_waiting)}" for v in views)
    here = view.first_waiting
    return view.finding(
        cls="collective_order_mismatch",
        strength=Strength.LIKELY,
        summary=f"Groups wait for each other in a cycle: {said}.",
        guilty_ranks=ranks,
        at=here,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"each of {these(ranks)} waits in another group itself: {said}",
        },
        fix="Let all ranks take the groups in the same order.",
    )


def _disagreement(view: View) -> Finding:
    """Some issued something else under that number, or brought something else to it."""
    pending = view.pending
    odd, other = _that_differ(view)
    everyone = len(pending.outliers) >= len(pending.waiting) and not pending.conforming
    who, rest = ((odd.rank,), these((other.rank,))) if everyone else (pending.outliers, "the others")
    waiting = f"{len(blocked_by(view, pending.outliers)):,} of {view.world:,} ranks wait"
    late = f" {these(pending.missing).capitalize()} issued none at all." if pending.missing else ""
    both = these((odd.rank, other.rank))
    if odd.op != other.op:
        cls, confused_with = "collective_order_mismatch", "collective_args_mismatch"
        did = f"issued {odd.op} as collective #{pending.seq} of {pending.group.name}, {rest} {other.op}"
        not_confused = f"{both} issued {odd.op} and {other.op}"
        fix = "Make all ranks issue the same collectives in the same order; a branch on rank or data before the line shown is the usual cause."
    else:
        cls, confused_with = "collective_args_mismatch", "collective_order_mismatch"
        did = f"passed {odd.shape} to {view.name(odd)}, {rest} {other.shape}"
        not_confused = f"{both} issued the same operation, {odd.op}"
        fix = "Let all ranks pass the same sizes and types: pad the last batch, or agree on the size first."
    known = [other, *(a for r in pending.outliers[:SHOWN] if (a := view.asked(r)) and a.rank != other.rank)]
    claim = "rank {0.rank} issued {0.op} {0.shape} as #{1}"
    missing = Rejected(
        cls="missing_rank", because=f"rank {odd.rank} issued {odd.op} as #{pending.seq}", source=odd.source
    )
    return view.finding(
        cls=cls,
        strength=Strength.CONCLUSIVE if len(pending.outliers) < len(pending.conforming) else Strength.WEAK,
        summary=f"{these(who).capitalize()} {did}; {waiting}.{late}",
        guilty_ranks=pending.outliers,
        at=odd,
        peers_at=other.place,
        evidence=tuple(Evidence(claim=claim.format(a, pending.seq), source=a.source) for a in known),
        rejected=(Rejected(cls=confused_with, because=not_confused), missing),
        next=None,
        gaps=("no majority: nothing shows which of them is wrong",) if everyone else (),
        fix=fix,
    )


def _that_differ(view: View) -> tuple[Asked, Asked]:
    """An outlier's call beside that of another rank: one that is no outlier, if any was read in full."""
    outliers = view.pending.outliers
    odd = next(a for r in outliers if (a := view.asked(r)))
    conforming = (r for r in view.external.details.documents if r not in outliers)
    others = [a for r in conforming if (a := view.asked(r))]
    unlike = [a for r in outliers if (a := view.asked(r)) and (a.op, a.shape) != (odd.op, odd.shape)]
    return odd, (others or unlike or [odd])[0]
