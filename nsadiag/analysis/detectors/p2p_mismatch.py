"""A send or receive whose counterpart never comes: both wait for each other, or peer, tag, count or size do not match."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.analysis import loops, places
from nsadiag.analysis.breaks import earliest_failure
from nsadiag.analysis.cycles import closed_cycles
from nsadiag.analysis.divergence import Situation
from nsadiag.analysis.flow.on_rank import OnRank
from nsadiag.analysis.flow.rounds import loop_left
from nsadiag.analysis.groups import shown
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.pairing import (
    GUESSES,
    UNUSUAL,
    Pending,
    Short,
    blame,
    left_short,
    misfits,
    pending_of,
)
from nsadiag.analysis.shortfall import shortfalls
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import is_still
from nsadiag.evidence.records import Collective, Evidence, Finding, Place, Rejected, Where

FIX = "Let every send meet its receive: one side sends first and the other receives first (or both in one batch_isend_irecv), with the same peer, tag, size and number of messages."


def p2p_mismatch(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    if is_still(cell):
        for cycle in closed_cycles(tables.graph):
            waiting = {rank: p for rank in cycle if (p := pending_of(tables, rank))}
            if waiting:
                yield _cycle(cell, tables, cycle, waiting)
    elif earliest_failure(cell) is not None:
        yield from _sizes(cell, tables)
        yield from _too_few(cell, tables)


def _cycle(
    cell: CellEvidence, tables: Tables, cycle: tuple[int, ...], waiting: dict[int, Pending]
) -> Finding:
    guilty, why = blame(tables, waiting)
    blocked = tuple(sorted(set(cycle) - set(guilty)))
    stands = tables.standings
    first = waiting.get(guilty[0])
    here = first.place if first else stands[guilty[0]].place if guilty[0] in stands else None
    short = left_short(tables, guilty[0]) if why == UNUSUAL else None
    if short and short.place:
        here = _left(cell, tables, guilty[0], short.place)
    said = "; ".join(f"rank {rank} {p.said}" for rank, p in sorted(waiting.items())[:5])
    return Finding(
        detector="p2p_mismatch",
        cls="p2p_mismatch",
        outcome="hung",
        confidence=0.9 if why not in GUESSES and (blocked or len(waiting) == len(cycle)) else 0.75,
        summary=f"Ranks {shown(cycle)} wait for each other: {said}. Rank {shown(guilty)}: {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(
            collective=Collective(op=first.op, group=first.group, seq=first.number) if first else None,
            step=cell.rank(guilty[0]).end.get("steps"),
        ).at(here),
        peers_at=stands[blocked[0]].place if blocked and blocked[0] in stands else None,
        evidence=(
            *(
                Evidence(claim=f"rank {rank} {p.said}, and it never ends", source=p.source)
                for rank, p in sorted(waiting.items())[:6]
            ),
            *(
                Evidence(claim=p.counterpart, source=p.source)
                for _, p in sorted(waiting.items())[:6]
                if p.counterpart
            ),
            *_shortage(cell, guilty[0], short),
            Evidence(claim=cell.watch["looks"][-1]["reason"], source="watch.json#looks"),
        ),
        rejected=(
            Rejected(
                cls="missing_rank",
                because="nobody who is waited for is busy with something of its own: all wait for one another",
            ),
            Rejected(
                cls="network_stall",
                because="the message that is waited for was never sent, or goes to where nobody receives",
            ),
        ),
        fix=FIX,
    )


def _shortage(cell: CellEvidence, rank: int, short: Short | None) -> Iterator[Evidence]:
    if short and short.place:
        yield Evidence(
            claim=f"rank {rank} was through with {short.now} messages from {places.short(short.place)} in this step, and had {short.before} or more in each before",
            source=f"{cell.rank(rank).source}/blackbox.bin",
        )


def _left(cell: CellEvidence, tables: Tables, rank: int, at: Place) -> Place:
    """The loop that the rank left with fewer messages from the line, or what passed by it; the line where that is not certain."""
    here = _what_counts(cell, at)
    if here != at:
        return here
    stands = {r: tuple(reversed(s.frames)) for r, s in tables.standings.items()}
    others = [chain for r, chain in stands.items() if r != rank]
    who = OnRank(program=Situation(cell, tables).program, rank=rank, world_size=cell.world_size)
    return loop_left(at, who, stands.get(rank, ()), others) or at


def _what_counts(cell: CellEvidence, at: Place) -> Place:
    """The loop around the line, if nothing but its rounds decides how often the line is run; else the line."""
    around: list[ast.For | ast.While] = loops.around(cell, at, (ast.For, ast.While))
    if not around:
        return at
    decides = (ast.If, ast.Try, ast.Match, ast.Continue, ast.Break, ast.Return)
    if any(isinstance(node, decides) for each in around[0].body for node in ast.walk(each)):
        return at
    return places.place(at.file, around[0].lineno, at.function)


def _sizes(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    """The transport refused a message of another size than its receiver had room for."""
    for misfit in misfits(tables):
        sender, receiver = misfit.sender, misfit.receiver
        guilty = misfit.guilty
        at = misfit.places[guilty]
        yield Finding(
            detector="p2p_mismatch",
            cls="p2p_mismatch",
            outcome="crashed",
            confidence=0.85,
            summary=f"Rank {sender} sends {misfit.sent} as message {misfit.number} to rank {receiver}, which receives {misfit.received}.",
            guilty_ranks=(guilty,),
            blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank != guilty),
            where=Where(step=cell.rank(guilty).end.get("steps")).at(places.of_text(at)),
            peers_at=places.of_text(misfit.places[receiver if guilty == sender else sender]),
            evidence=(
                Evidence(
                    claim=f"rank {sender} sent {misfit.sent} to rank {receiver}, tag {misfit.tag}",
                    source=f"{cell.rank(sender).source}/blackbox.bin",
                ),
                Evidence(
                    claim=f"rank {receiver} made room for {misfit.received}",
                    source=f"{cell.rank(receiver).source}/blackbox.bin",
                ),
            ),
            rejected=(
                Rejected(
                    cls="rank_exception",
                    because="the error came out of the transport, after both had asked for different things",
                ),
            ),
            fix="Receive into a tensor of the size and type that is sent; send the size first where it varies.",
        )


def _too_few(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    """A rank was still receiving when its sender had come to its end, having sent fewer messages."""
    for short in shortfalls(cell, tables):
        sender, receiver, guilty = short.sender, short.receiver, short.guilty
        yield Finding(
            detector="p2p_mismatch",
            cls="p2p_mismatch",
            outcome="crashed",
            confidence=0.8,
            summary=f"Rank {receiver} waits for message {short.received} from rank {sender}, which sent {short.sent} and came to its end. {short.why}",
            guilty_ranks=(guilty,),
            blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank != guilty),
            where=Where(step=short.step).at(places.of_text(short.places[guilty])),
            peers_at=places.of_text(short.places[receiver if guilty == sender else sender]),
            evidence=(
                Evidence(
                    claim=f"rank {sender} sent {short.sent} messages to rank {receiver}",
                    source=f"{cell.rank(sender).source}/blackbox.bin",
                ),
                Evidence(
                    claim=f"rank {receiver} had begun to receive {short.received} from it",
                    source=f"{cell.rank(receiver).source}/blackbox.bin",
                ),
            ),
            rejected=(
                Rejected(
                    cls="rank_exited_early",
                    because=f"rank {sender} had done no fewer steps than rank {receiver}",
                ),
            ),
            fix=FIX,
        )
