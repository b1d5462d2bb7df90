"""The explanation of a divergence of ranks that wait for each other, which six rules name.

From the outside in: the frames that the ranks share, the first in which they differ, what that line depends on in
the source, and what each rank had done before, iteration by iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import DEPENDS, Candidate, Rejection, ranked, shown
from nsadiag.analysis.explain.candidates import GENERATORS
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.recorded import as_recorded
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import breaks, first_break, says_mismatch
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.messages.received import misled
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.relations.pending import is_still, waiting_group
from nsadiag.analysis.relations.suppressed_exceptions import gone_on, in_flight
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.records import Collective, Evidence, Place


def is_stuck(case: Case) -> bool:
    """Whether ranks wait for each other indefinitely, or did until one of them ended, or their disagreement made one fail."""
    cell = case.cell
    first = first_break(cell)
    if first is None:
        # Where all that broke only lost a peer, or gave up waiting for one, nothing but their parting is left.
        return is_still(cell) or any(b.kind != "exited" for b in breaks(cell))
    return first.kind == "exited" or says_mismatch(first.rank) or misled(case) is not None


def obstacle(case: Case) -> Declined | None:
    """The fact that keeps the question from being asked."""
    if case.cell.world_size < 2:
        return Declined(f"the job has {count(case.cell.world_size, 'rank')}, and so no peer to diverge from")
    if not is_stuck(case):
        return Declined(f"of {case.cell.world_size} ranks none was left waiting for another one", "ends.json")
    if swallowed := in_flight(case) or gone_on(case):
        # It diverged from the others by that exception.
        return Declined(
            f"rank {swallowed.rank.rank} left the common path by an exception of its own", swallowed.source
        )
    if not any(r.recording.header for r in case.cell.ranks) and not case.thread_states:
        # Dumps that others collected: no stack and no history, of thousands of ranks maybe.
        return Declined(f"{case.cell.world_size} ranks left neither a stack nor a recorder")
    members = case.once(waiting_group)
    open_ = case.transfers[case.transfers.end_s.isna() & case.transfers["rank"].isin(members)]
    inside = {*open_["rank"]} if set(open_.peer) & members else set[int]()
    if waiting := sorted(inside | {r.rank for r in case.cell.ranks if failed_in_transfer(r)}):
        # Stages of a pipeline rightly run different code: who waits for whose message is another question.
        return Declined(
            f"{these(waiting)} stood in sends and receives: stages rightly run different code",
            f"{case.cell.rank(waiting[0]).source}/blackbox.bin",
        )
    return None


def candidates(case: Case) -> tuple[Candidate, ...]:
    """All that the generators find, the best first; nothing where something keeps the question from being asked."""
    return ranked(each for each in case.once(_looked_at) if isinstance(each, Candidate))


def rejections(case: Case) -> tuple[Rejection, ...]:
    """The conditions that were looked at and made no candidate, each reason once."""
    return tuple(dict.fromkeys(each for each in case.once(_looked_at) if isinstance(each, Rejection)))


def _looked_at(case: Case) -> tuple[Candidate | Rejection, ...]:
    if case.once(obstacle) or len((context := case.once(Context)).members()) < 2:
        return ()
    return tuple(each for generate in GENERATORS for each in generate(context))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The best candidate, with what is the same for all."""

    best: Candidate
    peers_at: Place | None
    collective: Collective | None
    evidence: tuple[Evidence, ...]


def explain(case: Case) -> Explanation | None:
    """The condition that the sides of the divergence depend on differently; None where no candidate is known."""
    if not (found := case.once(candidates)):
        return None
    context, best = case.once(Context), as_recorded(case, found[0])
    evidence = [*best.evidence]
    if best.condition is not None:
        claim = f"`{shown(best.condition)}` depends on {DEPENDS[best.condition.provenance]}"
        evidence.append(Evidence(claim=claim, source=context.cited(best.condition.place)))
    if unfit := misled(case):
        claim = f"rank {unfit.rank} failed on what it received there: {headline(first_of(unfit.exception or NOT_RAISED))}"
        evidence.append(Evidence(claim=claim, source=f"{unfit.source}/exception.json"))
    if last := case.cell.watch.last_look:
        evidence.append(Evidence(claim=last.reason, source="watch.json#looks"))
    return Explanation(
        best=best,
        peers_at=context.place_of(best.blocked[0]) if best.blocked else None,
        collective=next((c for r in (*best.blocked, *best.guilty) if (c := context.collective(r))), None),
        evidence=tuple(evidence),
    )
