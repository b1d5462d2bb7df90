"""The same group, number and operation with another size, type, root or split: one side sends what the other does not expect."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import earliest_failure
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.call_mismatch import (
    Asked,
    Disagreement,
    in_black_boxes,
    in_both,
    still_disagree,
)
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import at_line, hung_or_crashed, named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.root_choice import chosen_at

FIXES = {
    "root": "Use the same root on all ranks: compute it on one rank and broadcast it, or derive it from what all ranks share.",
    "size": "Pass tensors of one size on all ranks: pad to the largest (after an all_gather of the sizes), or drop the ragged batch on all of them.",
    "type": "Pass tensors of one type on all ranks: cast before the call, and let all ranks read the same settings.",
    "splits": "The splits that a rank expects must be those that its peer sends: exchange the counts, and derive both lists from them.",
}
# A mismatch that completed may surface some collectives later: garbage in a size, a buffer overflow.
CALLS_LATER = 5


def collective_args_mismatch(case: Case) -> Iterator[Draft | Declined]:
    broke = is_still(case.cell) or earliest_failure(case.cell) is not None
    found = [*in_black_boxes(case), *(one for one in in_both(case) if broke and one.recorded)]
    for one in found:
        counts = _is_recent(case, one) if broke else _went_through(case, one)
        if counts and not is_out_of_order(case, one):
            yield _finding(case, one)
    for one in found[:3]:
        (rank, mine), (other, theirs) = _unlike(one)
        but = "they are different calls" if is_out_of_order(case, one) else "the ranks continued after it"
        yield Declined(
            f"as call #{one.call} of {one.group} rank {rank} issued {mine.what}{at_line(mine.place)} and rank {other} {theirs.what}{at_line(theirs.place)}: {but}",
            mine.source,
        )
    if not found:
        yield Declined(
            f"none of {len(case.asked) or 'the'} recorded calls has different arguments on different ranks"
        )


def _unlike(one: Disagreement) -> tuple[tuple[int, Asked], tuple[int, Asked]]:
    """Two ranks that differ."""
    first, *others = sorted(one.asked.items())
    return first, next((each for each in others if each[1].what != first[1].what), others[0])


def _went_through(case: Case, one: Disagreement) -> bool:
    """Whether NCCL accepted splits that gloo rejects: rows that were expected but never sent are garbage."""
    return one.kind == "splits" and set(one.asked) == set(case.groups.members(one.group))


def _is_recent(case: Case, one: Disagreement) -> bool:
    if one.recorded:
        return True
    asked = case.asked[case.asked.group == one.group]
    last = int(asked[asked["rank"].isin(one.asked)].groupby("rank").call.max().min())
    return last <= one.call + CALLS_LATER or still_disagree(case, one, CALLS_LATER)


def _finding(case: Case, one: Disagreement) -> Draft:
    found = call_outliers(case, one)
    guilty, why = found.ranks, found.criterion
    clear = len(guilty) < len(one.asked)
    blocked = tuple(sorted(set(one.asked) - set(guilty)))
    first = one.asked[guilty[0]]
    peer = one.asked[blocked[0]] if blocked else None
    against = f", where {named(case.cell, blocked)} issued {peer.what}" if peer else ""
    chosen = chosen_at(case.cell.code, first.place) if one.kind == "root" and first.place else None
    # Without an outlier the call is the same on all ranks, and only its arguments differ.
    here = chosen if chosen and not clear else first.place or locations.of_rank_now(case.cell.rank(guilty[0]))
    broke = earliest_failure(case.cell)
    return Draft(
        outcome=hung_or_crashed(case.cell) if broke or is_still(case.cell) else "wrong",
        strength=Strength.CONCLUSIVE if clear else Strength.LIKELY,
        summary=f"{named(case.cell, guilty).capitalize()} issued {first.what} as call #{one.call} of {one.group}{against}: another {one.kind}; it is {why}."
        if clear
        else f"In call #{one.call} of {one.group} {_each(case.cell, one)}: another {one.kind}, and it is unknown which is intended.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(collective=one.collective(guilty[0]), step=case.cell.rank(guilty[0]).end.steps).at(here),
        peers_at=peer.place if peer else None,
        evidence={
            **{
                f"rank {rank} issued {asked.what} as number {one.call} of {one.group}": asked.source
                for rank, asked in _both_sides(one, guilty)
            },
            **{
                f"the root is chosen at {locations.short(at)}: `{at.code}`": sources.cited(
                    case.cell, at.file, at.line
                )
                for at in [chosen]
                if at is not None
            },
        },
        fix=FIXES.get(one.kind),
    )


def _each(cell: CellEvidence, one: Disagreement) -> str:
    """The calls of each rank, for a sentence."""
    said: dict[str, list[int]] = {}
    for rank, asked in sorted(one.asked.items()):
        said.setdefault(asked.what, []).append(rank)
    return ", ".join(f"{named(cell, ranks)} issued {what}" for what, ranks in [*said.items()][:4])


def _both_sides(one: Disagreement, guilty: tuple[int, ...]) -> list[tuple[int, Asked]]:
    others = [rank for rank in sorted(one.asked) if rank not in guilty]
    return [(rank, one.asked[rank]) for rank in (*guilty[:4], *others[:4])]


RULE = Rule(
    name="collective_args_mismatch",
    means={
        "collective_args_mismatch": "Ranks issued the same collective with other sizes, types, splits or root."
    },
    family="structure",
    detected="The same group, number and operation, called from the same place, with another number of elements, type, root, or splits that do not match. It outranks exceptions and signals, since what the transport reports or dies of is a consequence. The minority is guilty; without one, the ranks that never passed such arguments at this line before",
    fix="Pass tensors of one size and type, the same root, and matching splits: pad, cast, or exchange the sizes first.",
    check=collective_args_mismatch,
    needs=("black_boxes",),
    explained_by=("divergent_module_execution",),
    confused_with=("collective_order_mismatch", "missing_rank", "rank_exception"),
)
