"""The explanation of a divergence of ranks that wait for each other, which six rules name.

From the outside in: the frames that the ranks share, the first in which they differ, what that line depends on in
the source, and what each rank had done before, iteration by iteration.
"""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.hypotheses import HYPOTHESES
from nsadiag.analysis.explain.suppressed_exceptions import gone_on, in_flight
from nsadiag.analysis.facts.exits import breaks, first_break, says_mismatch
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.messages.unsent import failed_in_transfer
from nsadiag.analysis.relations.pending import is_still


def is_stuck(cell: CellEvidence) -> bool:
    """Whether ranks wait for each other for ever, or did until one of them ended, or the backend saw that they disagree."""
    first = first_break(cell)
    if first is None:
        # Where all that broke only lost a peer, or gave up waiting for one, nothing but their parting is left.
        return is_still(cell) or any(b.kind != "exited" for b in breaks(cell))
    return first.kind == "exited" or says_mismatch(first.rank)


def obstacle(case: Case) -> Declined | None:
    """The fact that keeps any hypothesis from being tried."""
    if case.cell.world_size < 2:
        return Declined("one rank has no peer to diverge from")
    if not is_stuck(case.cell):
        return Declined("no rank was left waiting for another one", "ends.json")
    if swallowed := in_flight(case) or gone_on(case):
        # It diverged from the others by that exception.
        return Declined(
            f"rank {swallowed.rank.rank} left the common path by an exception of its own", swallowed.source
        )
    if not any(r.recording.header for r in case.cell.ranks) and not case.thread_states:
        # Dumps that others collected: no stack and no history, of thousands of ranks maybe.
        return Declined("no rank has a stack or a recorder")
    if case.transfers.end_s.isna().any() or any(failed_in_transfer(r) for r in case.cell.ranks):
        # Stages of a pipeline rightly run different code: who waits for whose message is another question.
        return Declined("ranks wait in sends and receives: stages rightly run different code")
    return None


def attempts(case: Case) -> tuple[tuple[str, Explanation | None], ...]:
    """The hypotheses tried, by name, up to the first that the evidence bears out."""
    if case.once(obstacle) or len((context := Context(case)).members()) < 2:
        return ()
    found = []
    for hypothesis in HYPOTHESES:
        found.append((hypothesis.__name__, hypothesis(context)))
        if found[-1][1]:
            break
    return tuple(found)


def explain(case: Case) -> Explanation | None:
    """The first hypothesis that the evidence bears out; None where nothing shows why the ranks disagree."""
    return next((found for _, found in case.once(attempts) if found), None)
