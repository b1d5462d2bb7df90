"""A send or receive without a counterpart: ranks wait for each other, or peer, tag, count or size do not match."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import earliest_failure
from nsadiag.analysis.outliers import Criterion, Outliers
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.messages.pairing import PendingTransfer, messages_of_peer, misfits, pending_of
from nsadiag.analysis.relations.messages.unsent import shortfalls
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.desync.messages.outliers import message_outliers
from nsadiag.analysis.rules.drafts import last_look, line_of, named, recorded
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import capitalized, count
from nsadiag.evidence.records import Collective, Place, Strength, Where


def p2p_mismatch(case: Case) -> Iterator[Draft | Declined]:
    if is_still(case.cell):
        yield from _sizes(case)
        for cycle in case.once(graph_of).closed_cycles():
            waiting = {rank: p for rank in cycle if (p := pending_of(case, rank))}
            if waiting:
                yield _cycle(case, cycle, waiting)
        yield from _too_few(case)
    elif earliest_failure(case.cell) is not None:
        yield from _sizes(case)
        yield from _too_few(case)
    if case.transfers.empty:
        yield Declined(f"{everyone(case.cell)} recorded no send or receive")
    else:
        yield Declined(
            f"none of {count(len(case.transfers), 'recorded transfer')} met one of another size, and no cycle of ranks waits in them"
        )


def _cycle(case: Case, cycle: tuple[int, ...], waiting: dict[int, PendingTransfer]) -> Draft:
    found = message_outliers(case, waiting)
    guilty, first = found.ranks, waiting.get(found.ranks[0])
    blocked = tuple(sorted(set(cycle) - set(guilty)))
    sure = found.criterion not in (Criterion.UNDECIDED, Criterion.OWN_LINE)
    rows = sorted(waiting.items())
    said = "; ".join(f"rank {rank} {p.said}" for rank, p in rows[:5])
    return Draft(
        strength=Strength.STRONG if sure and (blocked or len(waiting) == len(cycle)) else Strength.LIKELY,
        summary=f"{named(case.cell, cycle).capitalize()} wait for each other: {said}. {capitalized(found.said_of(named(case.cell, guilty)))}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        at=first.place if first else _left_out_at(case, found, waiting) or line_of(case, guilty[:1]),
        where=Where(
            collective=Collective(op=first.op, group=first.group, seq=first.number) if first else None
        ),
        peers_at=line_of(case, blocked[:1]),
        evidence={
            **{f"rank {rank} {p.said}, and it never completes": p.source for rank, p in rows[:6]},
            **{p.counterpart: p.source for _, p in rows[:6] if p.counterpart},
            **last_look(case.cell),
        },
    )


def _left_out_at(case: Case, found: Outliers, waiting: dict[int, PendingTransfer]) -> Place | None:
    """The line of the message that the rank had in each round before."""
    if found.criterion != Criterion.LEFT_OUT:
        return None
    one = next(p for p in waiting.values() if p.peer == found.ranks[0] and p.counterpart)
    return locations.of_text(messages_of_peer(case, one).iloc[-1].place)


def _sizes(case: Case) -> Iterator[Draft]:
    """A message of another size than its receiver expects: the transport rejects it, or never delivers it."""
    hangs = is_still(case.cell)
    for misfit in misfits(case):
        if hangs and not misfit.is_open:
            continue
        sender, receiver, guilty = misfit.sender, misfit.receiver, misfit.guilty
        yield Draft(
            outcome="hung" if hangs else "crashed",
            strength=Strength.STRONG,
            summary=f"Rank {sender} sends {misfit.sent} as message {misfit.number} to rank {receiver}, which receives {misfit.received}.",
            guilty_ranks=(guilty,),
            at=locations.of_text(misfit.places[guilty]),
            peers_at=locations.of_text(misfit.places[receiver if guilty == sender else sender]),
            evidence={
                **recorded(case.cell, {sender: f"sent {misfit.sent} to rank {receiver}, tag {misfit.tag}"}),
                **recorded(case.cell, {receiver: f"expected {misfit.received}"}),
            },
            fix="Receive into a tensor of the size and type that is sent; if the size varies, send it first.",
        )


def _too_few(case: Case) -> Iterator[Draft]:
    """A rank that is still receiving although its sender has exited after fewer messages."""
    for short in shortfalls(case):
        sender, receiver, guilty = short.sender, short.receiver, short.guilty
        yield Draft(
            outcome="hung" if is_still(case.cell) else "crashed",
            strength=Strength.STRONG,
            summary=f"Rank {receiver} waits for message {short.received} from rank {sender}, which sent {short.sent} and exited. {short.why}",
            guilty_ranks=(guilty,),
            at=locations.of_text(short.places[guilty]),
            where=Where(step=short.step),
            peers_at=locations.of_text(short.places[receiver if guilty == sender else sender]),
            evidence={
                **recorded(case.cell, {sender: f"sent {count(short.sent, 'message')} to rank {receiver}"}),
                **recorded(case.cell, {receiver: f"began to receive message {short.received} from it"}),
            },
        )


RULE = Rule(
    means={"p2p_mismatch": "Sends and receives do not match, or wait for each other in a cycle."},
    family="waiting",
    detected="A rank waits in a send or receive, and the rank that it waits for waits, directly or indirectly, for it. Guilty is, in this order: a rank with another number of messages than in its earlier steps; the minority; a rank whose message has no counterpart, or another tag than most; all, if all do the same. Or the sender of a pending receive has exited after fewer messages than its peer has begun to receive. In a crash: the nth message between two ranks has another size or type than its receiver expects.",
    fix="Let every send meet its receive: one side sends first and the other receives first (or both in one batch_isend_irecv), with the same peer, tag, size and number of messages.",
    check=p2p_mismatch,
    needs=("black_boxes",),
    explained_by=("rendezvous_mismatch",),
    confused_with=("missing_rank", "network_stall", "rank_exception", "rank_exited_early"),
)
