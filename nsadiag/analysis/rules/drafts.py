"""From drafts to findings, and parts of drafts that several rules share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.blocked import BlockedRank
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Act, Evidence, Finding, Outcome, Place, Strength, Where


def finding_of(rule: Rule, draft: Draft, cell: CellEvidence) -> Finding:
    """The draft, completed by its rule and by how the job ended."""
    outcome = draft.outcome or rule.outcome or hung_or_crashed(cell)
    has_victims = outcome in ("hung", "crashed") and bool(draft.guilty_ranks)
    where, blocked = draft.where, draft.blocked_ranks
    if draft.at or has_victims:
        where = (where or Where()).at(draft.at)
    if where and where.step is None and has_victims:
        where = dataclasses.replace(where, step=_steps_of(cell, draft.guilty_ranks[0]))
    if blocked is None:
        blocked = all_but(cell, draft.guilty_ranks) if has_victims else ()
    strength, gaps = draft.strength, draft.gaps
    if rule.cause_in_source and where and where.file and cell.code.file(where.file) is None:
        strength = strength.at_most(Strength.LIKELY)
        gaps = (
            *gaps,
            f"the source of {where.file} is not available: why the ranks diverged could not be read",
        )
    return Finding(
        mechanism=rule.name,
        cls=draft.cls or rule.cls,
        outcome=outcome,
        strength=strength,
        summary=draft.summary,
        guilty_ranks=draft.guilty_ranks,
        blocked_ranks=blocked,
        where=where,
        peers_at=draft.peers_at,
        evidence=tuple(Evidence(claim=c, source=s) for c, s in draft.evidence.items()),
        gaps=gaps,
        fix=draft.fix or rule.fix or None,
        next=draft.next,
        actions=draft.actions or rule.actions,
    )


def _steps_of(cell: CellEvidence, number: int) -> int | None:
    return next((rank.end.steps for rank in cell.ranks if rank.rank == number), None)


def sides(case: Case, singled_out: tuple[int, ...], peers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Guilty and blocked ranks: of ranks that disagree in somebody else's log and of which none stands out, which is guilty is unknown."""
    return ((), singled_out) if case.cell.collected is not None and not peers else (singled_out, peers)


def all_but(cell: CellEvidence, ranks: Iterable[int]) -> tuple[int, ...]:
    """All ranks with evidence except these."""
    others = set(ranks)
    return tuple(sorted(r.rank for r in cell.ranks if r.rank not in others))


def named(cell: CellEvidence, ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 2-7`: all ranks that these stand for."""
    return these(cell.everyone(ranks))


def hung_or_crashed(cell: CellEvidence) -> Outcome:
    """The outcome of a job that did not complete."""
    return "hung" if is_still(cell) or cell.stopped == "hang" else "crashed"


def recorder_of(cell: CellEvidence, number: int) -> str:
    """The file with the rank's events."""
    return f"{cell.rank(number).source}/blackbox.bin"


def recorder_dump(cell: CellEvidence, number: int) -> str:
    """The file with the newest dump of the rank's flight recorder."""
    rank = cell.rank(number)
    dumped = next((c for c in reversed(rank.captures) if c.flight_recorder), rank.last_capture)
    return f"{dumped.source if dumped else rank.source}/fr.json"


def recorded(cell: CellEvidence, did: Mapping[int, str]) -> Claims:
    """Claims that the ranks' own events show: `rank 1 began ...`."""
    return {f"rank {rank} {what}": recorder_of(cell, rank) for rank, what in did.items()}


def module_of(parameter: str | None) -> str | None:
    """The module that holds a parameter of this name."""
    return parameter.rpartition(".")[0] if parameter else None


def claims_of(evidence: Iterable[Evidence]) -> Claims:
    """Evidence of an explanation, as a draft holds it."""
    return {each.claim: each.source for each in evidence}


def at_line(place: Place | None) -> str:
    """` at file.py:12`; empty if the line is unknown."""
    return f" at {locations.short(place)}" if place else ""


def last_look(cell: CellEvidence) -> Claims:
    """The last snapshot of the whole job, with its reason for calling the job still, where nsadiag took one."""
    last = cell.watch.last_look
    return {last.reason: "watch.json#looks"} if last else {}


def line_of(case: Case, ranks: Iterable[int]) -> Place | None:
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
    at: Place | None = None,
    next_step: str | None = None,
    actions: tuple[Act, ...] = (),
) -> Draft:
    """A draft for a cause inside one rank; `at` if the line is not the main thread's innermost."""
    peers = (locations.of_rank_now(r) for r in cell.ranks if r.rank in blocked.waiters)
    return Draft(
        outcome="hung",
        strength=strength,
        summary=summary,
        guilty_ranks=(blocked.number,),
        blocked_ranks=blocked.waiters,
        at=at or blocked.state.place,
        where=Where(collective=blocked.collective),
        peers_at=next((place for place in peers if place), None),
        evidence={**evidence, **dict([blocked.waited] if blocked.waited else []), **last_look(cell)},
        fix=fix,
        next=next_step,
        actions=actions,
    )
