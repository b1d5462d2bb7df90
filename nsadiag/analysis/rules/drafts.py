"""Parts of drafts that several rules share."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.blocked import BlockedRank
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.rule import Claims, Draft
from nsadiag.evidence.records import Act, Evidence, Outcome, Place, Strength, Where


def all_but(cell: CellEvidence, ranks: Iterable[int]) -> tuple[int, ...]:
    """All ranks with evidence except these."""
    named = set(ranks)
    return tuple(r.rank for r in cell.ranks if r.rank not in named)


def named(cell: CellEvidence, ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 2-7`: all ranks that these stand for."""
    everyone = cell.everyone(ranks)
    return f"rank{'s' if len(everyone) > 1 else ''} {cell.names(everyone)}"


def hung_or_crashed(cell: CellEvidence) -> Outcome:
    """The outcome of a job that did not complete."""
    return "hung" if is_still(cell) or cell.stopped == "hang" else "crashed"


def claims_of(evidence: Iterable[Evidence]) -> Claims:
    """Evidence of an explanation, as a draft holds it."""
    return {each.claim: each.source for each in evidence}


def at_line(place: Place | None) -> str:
    """` at file.py:12`; empty if the line is unknown."""
    return f" at {locations.short(place)}" if place else ""


def last_look(cell: CellEvidence) -> Claims:
    """The last snapshot of the whole job, with its reason for calling the job still."""
    return {cell.watch.looks[-1].reason: "watch.json#looks"}


def place_of(case: Case, ranks: Iterable[int]) -> Place | None:
    """The line of the first of these ranks that was captured."""
    return next((s.place for r in ranks if (s := case.thread_states.get(r))), None)


def inside_rank(
    cell: CellEvidence,
    blocked: BlockedRank,
    *,
    strength: Strength,
    summary: str,
    evidence: Claims,
    fix: str | None = None,
    where: Place | None = None,
    cls: str | None = None,
    next_step: str | None = None,
    actions: tuple[Act, ...] = (),
) -> Draft:
    """A draft for a cause inside one rank; `where` if the line is not the main thread's innermost."""
    peers = [at for r in blocked.waiters if (at := _now(cell, r))]
    waiting = dict([blocked.waited]) if blocked.waited else {}
    return Draft(
        cls=cls,
        outcome="hung",
        strength=strength,
        summary=summary,
        guilty_ranks=(blocked.number,),
        blocked_ranks=blocked.waiters,
        where=Where(collective=blocked.collective, step=blocked.rank.end.steps).at(
            where or blocked.state.place
        ),
        peers_at=peers[0] if peers else None,
        evidence={**evidence, **waiting, **last_look(cell)},
        fix=fix,
        next=next_step,
        actions=actions,
    )


def _now(cell: CellEvidence, number: int) -> Place | None:
    rank = next((r for r in cell.ranks if r.rank == number), None)
    return locations.of_rank_now(rank) if rank else None
