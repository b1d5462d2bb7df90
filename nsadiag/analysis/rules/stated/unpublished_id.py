"""A communicator whose first rank never published its id, for which the others waited in vain."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.texts.unique_ids import UniqueIdWait, unique_id_wait
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.phrases import capitalized
from nsadiag.evidence.records import Strength, Where

MOST_CITED = 4


def unpublished_id(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    waits = [(r.rank, r.exception, w) for r in cell.ranks if r.exception and (w := _wait(r.exception))]
    if not waits:
        return
    first = waits[0][2].first
    same = all(wait.first == first for _, _, wait in waits)
    # Where the ranks have their own numbers in the group, it may be the one of all ranks.
    whole = same and all(rank == wait.rank for rank, _, wait in waits)
    dead = next((r for r in cell.ranks if r.rank == first and r.exception and not _wait(r.exception)), None)
    if whole and dead and dead.exception:
        yield Declined(f"rank {first} raised {dead.exception.type}", f"{dead.source}/exception.json")
        return
    yield _draft(case, [(rank, raised) for rank, raised, _ in waits], first if whole else None)


def _draft(case: Case, waits: list[tuple[int, Raised]], first: int | None) -> Draft:
    cell, ranks = case.cell, tuple(rank for rank, _ in waits)
    raised = waits[0][1]
    who = "the first rank of that group" if first is None else f"rank {first}"
    summary = f"{named(cell, ranks)} waited in vain for the id of a communicator that {who} publishes: {who} had not come to that call, or had ended"
    return Draft(
        cls="missing_rank",
        outcome="hung",
        strength=Strength.LIKELY if first is not None else Strength.WEAK,
        summary=f"{capitalized(summary)}.",
        guilty_ranks=() if first is None else (first,),
        blocked_ranks=ranks,
        where=Where(),
        peers_at=place_of(first_of(raised)) or place_of(raised),
        evidence={
            f"rank {rank} asked the store for it, and got nothing": e.source
            or f"{cell.rank(rank).source}/exception.json"
            for rank, e in waits[:MOST_CITED]
        },
        gaps=(f"nothing here tells what {who} did instead",),
        fix=f"Find what kept {who} from that call: work that it does alone before it (preprocessing, a download, a save) for longer than the timeout, or an error in its own log.",
    )


def _wait(raised: Raised) -> UniqueIdWait | None:
    return unique_id_wait(first_of(raised).message) or unique_id_wait(raised.message)


RULE = Rule(
    concludes=("missing_rank",),
    about="collected",
    family="exit",
    detected="Ranks failed as they asked torch's store for the id of a communicator of NCCL's: its first rank publishes it when it comes to the same call, and had not. That rank is named where the others have their own numbers in the group.",
    fix="Find what kept the first rank of the group from that call.",
    actions=("unknown",),
    check=unpublished_id,
    explained_by=("rank_exception", "unnamed_exception", "rank_killed"),
    confused_with=("rendezvous_mismatch", "rank_exception"),
)
