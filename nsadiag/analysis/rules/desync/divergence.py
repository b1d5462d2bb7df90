"""The draft of a rule whose class is that of the divergence, and the reason to decline if the divergence has another class."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import DEPENDS, Candidate, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.explanation import Explanation, explain, is_stuck, obstacle
from nsadiag.analysis.facts import locations
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.drafts import claims_of, hung_or_crashed
from nsadiag.analysis.rules.reasons import other_break, these
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.records import Where


def by_divergence(case: Case, cls: str) -> Iterator[Draft | Declined]:
    """The draft of the rule whose class the divergence has."""
    found = case.once(explain)
    if found is None:
        yield from _unexplained(case)
    elif found.best.cls != cls:
        yield _another(case.cell, found.best)
    else:
        yield _draft(case.cell, found)


def _draft(cell: CellEvidence, found: Explanation) -> Draft:
    best = found.best
    word = "Rank" if len(cell.everyone(best.guilty)) == 1 else "Ranks"
    summary = f"{word} {cell.names(best.guilty)} {best.because}."
    if call := found.collective:
        summary += f" {call.op} #{call.seq} of {call.group} never completes."
    step = cell.rank(best.guilty[0]).end.steps
    return Draft(
        outcome=hung_or_crashed(cell),
        strength=best.strength,
        summary=summary,
        guilty_ranks=best.guilty,
        blocked_ranks=best.blocked,
        where=Where(collective=found.collective, step=step, module=best.module).at(best.where),
        peers_at=found.peers_at,
        evidence=claims_of(found.evidence),
    )


def _another(cell: CellEvidence, found: Candidate) -> Declined:
    """The condition between the ranks, if there is one: its provenance determines the class."""
    if guard := found.condition:
        at = locations.short(locations.place(guard.file, guard.line, guard.function or None))
        if found.cls == "uneven_inputs" and guard.is_loop:
            fact = f"the loop `{shown(guard)}` ({at}) ended by itself on {these(found.guilty)}"
        else:
            fact = (
                f"the ranks diverged at `{shown(guard)}` ({at}), which depends on {DEPENDS[guard.provenance]}"
            )
        return Declined(fact, sources.cited(cell, guard.file, guard.line))
    return found.declined(cell)


def _unexplained(case: Case) -> Iterator[Declined]:
    if not is_stuck(case.cell):
        yield from other_break(case.cell)
    elif keeps := case.once(obstacle):
        yield keeps
    elif len(case.once(Context).members()) > 1:
        stands = "; ".join(
            f"rank {rank}{f' at {locations.short(s.place)}' if s.place else ''}"
            for rank, s in sorted(case.thread_states.items())[:4]
        )
        where = f" ({stands})" if stands else ""
        yield Declined(f"no condition in the source explains where the ranks are{where}")
    else:
        yield Declined(f"fewer than two of {case.cell.world_size} ranks can be compared")
