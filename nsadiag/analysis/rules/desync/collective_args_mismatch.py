"""Same group, same number, same operation; another size, type, root or split: one side sends what the other does not expect."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import earliest_failure
from nsadiag.analysis.facts.groups import shown
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
from nsadiag.analysis.rules.drafts import at_line, hung_or_crashed
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.root_choice import chosen_at

FIXES = {
    "root": "Let all ranks name the same root: compute it on one of them and broadcast it, or derive it from what all have.",
    "size": "Give tensors of one size on all ranks: pad to the largest (after an all_gather of the sizes), or drop the ragged batch on all of them.",
    "type": "Give tensors of one type on all ranks: cast before the call, and let all ranks read the same settings.",
    "splits": "What a rank expects from its peer must be what the peer sends: exchange the counts, and derive both lists from them.",
}
# A mismatch that completed may surface some collectives later: rubbish in a size, a buffer that overflows.
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
        but = "these are different calls" if is_out_of_order(case, one) else "the ranks went on from there"
        yield Declined(
            f"as call #{one.call} of {one.group} rank {rank} issued {mine.what}{at_line(mine.place)} and rank {other} {theirs.what}{at_line(theirs.place)}: {but}",
            mine.source,
        )
    if not found:
        yield Declined(
            f"none of {len(case.asked) or 'the'} recorded calls differs between ranks in what it asks for"
        )


def _unlike(one: Disagreement) -> tuple[tuple[int, Asked], tuple[int, Asked]]:
    """Two ranks that differ."""
    first, *others = sorted(one.asked.items())
    return first, next((each for each in others if each[1].what != first[1].what), others[0])


def _went_through(case: Case, one: Disagreement) -> bool:
    """Whether NCCL let pass what gloo refuses: rows that were expected and never sent are rubbish."""
    return one.kind == "splits" and set(one.asked) == set(case.groups.members(one.group))


def _is_recent(case: Case, one: Disagreement) -> bool:
    if one.recorded:
        return True
    asked = case.asked[case.asked.group == one.group]
    last = int(asked[asked["rank"].isin(one.asked)].groupby("rank").call.max().min())
    return last <= one.call + CALLS_LATER or still_disagree(case, one, CALLS_LATER)


def _finding(case: Case, one: Disagreement) -> Draft:
    found = call_outliers(case, one)
    guilty, why = found.ranks, found.basis
    clear = len(guilty) < len(one.asked)
    blocked = tuple(sorted(set(one.asked) - set(guilty)))
    first = one.asked[guilty[0]]
    peer = one.asked[blocked[0]] if blocked else None
    against = f" where rank {shown(case.cell.everyone(blocked))} asks for {peer.what}" if peer else ""
    chosen = chosen_at(case.cell.code, first.place) if one.kind == "root" and first.place else None
    # The call is the same for all, where nobody in particular errs: what it is given is not.
    here = chosen if chosen and not clear else first.place or locations.of_rank_now(case.cell.rank(guilty[0]))
    broke = earliest_failure(case.cell)
    return Draft(
        outcome=hung_or_crashed(case.cell) if broke or is_still(case.cell) else "wrong",
        strength=Strength.CONCLUSIVE if clear else Strength.LIKELY,
        summary=f"Rank {shown(case.cell.everyone(guilty))} asks for {first.what} in call #{one.call} of {one.group}{against}: another {one.kind}; it is {why}."
        if clear
        else f"In call #{one.call} of {one.group} {_each(case.cell, one)}: another {one.kind}, and nothing tells which is meant.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(collective=one.collective(guilty[0]), step=case.cell.rank(guilty[0]).end.steps).at(here),
        peers_at=peer.place if peer else None,
        evidence={
            **{
                f"rank {rank} asked for {asked.what} as number {one.call} of {one.group}": asked.source
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
    """The ranks and what each asks for, for a sentence."""
    said: dict[str, list[int]] = {}
    for rank, asked in sorted(one.asked.items()):
        said.setdefault(asked.what, []).append(rank)
    return ", ".join(
        f"rank {shown(cell.everyone(ranks))} asks for {what}" for what, ranks in [*said.items()][:4]
    )


def _both_sides(one: Disagreement, guilty: tuple[int, ...]) -> list[tuple[int, Asked]]:
    others = [rank for rank in sorted(one.asked) if rank not in guilty]
    return [(rank, one.asked[rank]) for rank in (*guilty[:4], *others[:4])]


RULE = Rule(
    name="collective_args_mismatch",
    concludes=("collective_args_mismatch",),
    means={
        "collective_args_mismatch": "Ranks issued the same collective with other sizes, types, splits or root."
    },
    family="structure",
    detected="same group, number and operation, called from the same place; another number of elements, type, root, or splits that do not meet. Comes before exceptions and signals: what the transport then says, or dies of, is a consequence. The minority is guilty; without one, whoever never asked so before at this line",
    fix="Give tensors of one size and type, the same root, and splits that meet: pad, cast, or exchange the sizes first.",
    check=collective_args_mismatch,
    needs=("black_boxes",),
    explained_by=("divergent_module_execution",),
    confused_with=("collective_order_mismatch", "missing_rank", "rank_exception"),
)
