"""A cause of the whole job's that errors name: ranks that did not find each other, a network that fails."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer, headline, memory_of, place_of
from nsadiag.analysis.facts.texts.error_causes import ErrorCause, cause_in
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.phrases import capitalized
from nsadiag.evidence.records import Strength

MOST_CITED = 4


def stated_cause(case: Case) -> Iterator[Draft | Declined]:
    found = [(rank, raised, row) for rank, raised in _raised(case.cell) if (row := _tells(raised))]
    if not found:
        return
    # What is told last may follow from it.
    others = [raised for _, raised in _raised(case.cell) if _is_another(raised)]
    if others:
        yield Declined(f"a process also raised {headline(first_of(others[0]))}", others[0].source or None)
        return
    _, raised, row = found[0]
    alike = [r for r, _, each in found if each is row and r is not None]
    root = first_of(raised)
    yield Draft(
        cls=row.cls,
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"{capitalized(row.means)}: {headline(root)}.",
        blocked_ranks=tuple(sorted({*alike})),
        at=place_of(root) or place_of(raised),
        evidence={
            f"{'in the log' if r is None else f'the error of rank {r}'}: {headline(first_of(e))}": e.source
            or f"{case.cell.rank(r or 0).source}/exception.json"
            for r, e, _ in found[:MOST_CITED]
        },
        gaps=("who raised it is not who caused it: no rank is named",),
        fix=row.fix,
        next=row.next or None,
        actions=row.actions,
    )


def _raised(cell: CellEvidence) -> Iterator[tuple[int | None, Raised]]:
    for rank in cell.ranks:
        if rank.exception:
            yield rank.rank, rank.exception
    for raised in cell.unnamed:
        yield None, raised


def _tells(raised: Raised) -> ErrorCause | None:
    """The row of a cause that is not of whoever raised it."""
    root = first_of(raised)
    row = cause_in(root)
    return row if row and row.cls and memory_of(root) is None else None


def _is_another(raised: Raised) -> bool:
    """Whether it is an error of a process's own, and not the loss of a peer or the same cause."""
    return _tells(raised) is None and not follows_a_peer(first_of(raised))


RULE = Rule(
    concludes=("rendezvous_mismatch", "network_stall", "collective_args_mismatch"),
    about="collected",
    family="exit",
    detected="Errors in a log name a cause that is not of whoever raised them: no connection to the address of the first rank, clients that did not join, a transport of NCCL's that failed. No rank is named.",
    fix="Test the connection between the hosts.",
    actions=("unknown",),
    check=stated_cause,
    confused_with=("rank_exception", "missing_rank"),
)
