"""A call by a wrapper in C++ that met another one: it has no number in the recorder, and the transport names no reason."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import breaks, says_mismatch
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.call_mismatch import in_black_boxes
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.messages.received import OtherMessage, Reached, met_otherwise, misled
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import at_line, named, recorded
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength


def collective_order_refused(case: Case) -> Iterator[Draft | Declined]:
    found = None if is_still(case.cell) else rejection(case) or swapped_calls(case)
    if found is None:
        yield Declined(f"the transport of {everyone(case.cell)} rejected no message for its size")
        return
    peers = tuple(sorted(set(found.calls) - set(found.guilty)))
    reached = {r: f"{c.what}{at_line(c.place)}" for r, c in sorted(found.calls.items())}
    calls = "; ".join(f"rank {rank}: {what}" for rank, what in [*reached.items()][:6])
    who = (
        f"{named(case.cell, found.guilty)} left the common path"
        if peers
        else "it is unknown which is intended"
    )
    rank = case.cell.rank(found.rank)
    unfit = misled(case)
    rejected = f"rank {found.rank} received a message of another size than it expected"
    then = f"the transport rejected what rank {found.rank} received"
    if unfit and unfit.exception:
        then = f"rank {found.rank} failed on what it received"
        rejected = f"{then}: {headline(first_of(unfit.exception))}"
    yield Draft(
        outcome="crashed",
        strength=Strength.LIKELY if peers else Strength.GUESS,
        summary=f"The ranks disagree on the next collective ({calls}), and {then}; {who}.",
        guilty_ranks=found.guilty,
        blocked_ranks=peers,
        at=found.calls[found.guilty[0]].place,
        peers_at=found.calls[peers[0]].place if peers else None,
        evidence={
            **recorded(case.cell, {r: f"reached {what}" for r, what in [*reached.items()][:8]}),
            rejected: f"{rank.source}/{'exception.json' if rank.exception else 'stderr.log'}",
        },
    )


def rejection(case: Case) -> OtherMessage | None:
    """The message that the transport refused, or on which a rank failed; None if no rank reported one, or if its call was the same as the others'."""
    said, unfit = _rejecting(case.cell), misled(case)
    said = unfit.rank if said is None and unfit else said
    return None if said is None else met_otherwise(case.cell, said)


def swapped_calls(case: Case) -> OtherMessage | None:
    """The same of calls that all ranks make, in another order: threads that share a group may issue them so."""
    said = _rejecting(case.cell)
    if said is None:
        return None
    for one in in_black_boxes(case):
        if said in one.asked and is_out_of_order(case, one):
            return OtherMessage(
                rank=said,
                calls={
                    rank: Reached(what=asked.what, place=asked.place) for rank, asked in one.asked.items()
                },
                guilty=call_outliers(case, one).ranks,
            )
    return None


def _rejecting(cell: CellEvidence) -> int | None:
    return next((b.rank.rank for b in breaks(cell) if says_mismatch(b.rank)), None)


RULE = Rule(
    concludes=("collective_order_mismatch",),
    family="waiting",
    detected="In a crash: after a common history the ranks reached different calls, and the transport rejected what one of them received. It decides where a call was issued by a wrapper in C++, so that it has no number, and the source does not explain the divergence.",
    fix="Make all ranks issue the same collectives in the same order: iterate in an order that all ranks share (sorted keys), let no collective depend on one rank's data, and give each thread that issues collectives a group of its own.",
    check=collective_order_refused,
    cause_in_source=True,
    needs=("black_boxes",),
    explained_by=("collective_order_mismatch",),
    confused_with=(
        "collective_args_mismatch",
        "data_divergent_control_flow",
        "missing_rank",
        "rank_exception",
        "rank_killed",
    ),
)
