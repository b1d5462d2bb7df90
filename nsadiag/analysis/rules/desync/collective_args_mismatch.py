"""The same group, number and operation with another size, type, root or split: one side sends what the other does not expect."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import earliest_failure
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.outliers import Criterion, Outliers
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.call_mismatch import (
    Disagreement,
    in_black_boxes,
    in_both,
    in_messages,
    still_disagree,
)
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import at_line, named, sides
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import call_name, count
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.root_choice import chosen_at

FIXES = {
    "root": "Use the same root on all ranks: compute it on one rank and broadcast it, or derive it from what all ranks share.",
    "size": "Pass tensors of one size on all ranks: pad to the largest (after an all_gather of the sizes), or drop the ragged batch on all of them.",
    "type": "Pass tensors of one type on all ranks: cast before the call, and let all ranks read the same settings.",
    "splits": "The splits that a rank expects must be those that its peer sends: exchange the counts, and derive both lists from them.",
}
DIFFER = {
    "operation": "the operations differ",
    "root": "the roots differ",
    "size": "the sizes differ",
    "type": "the types differ",
    "splits": "the splits do not match",
}
# A mismatch that completed may surface some collectives later: garbage in a size, a buffer overflow.
CALLS_LATER = 5


def collective_args_mismatch(case: Case) -> Iterator[Draft | Declined]:
    failed = is_still(case.cell) or earliest_failure(case.cell) is not None
    recorded = [*in_black_boxes(case), *(one for one in in_both(case) if failed and one.recorded)]
    found = recorded or in_messages(case)
    for one in found:
        matters = _is_recent(case, one) if failed else _completed_with_garbage(case, one)
        if matters and not is_out_of_order(case, one):
            yield _draft(case, one, failed=failed)
    for one in found[:3]:
        mine, theirs = _two_that_differ(one)
        but = "these are different calls" if is_out_of_order(case, one) else "the ranks continued after it"
        call = call_name("call", one.call, one.group)
        yield Declined(
            f"in {call} {_issued(one, mine)} and {_issued(one, theirs)}: {but}", one.asked[mine].source
        )
    if not found and (calls := len(case.asked) + len(case.calls)):
        yield Declined(
            f"{count(calls, 'call')} on record, and none with different arguments on different ranks",
        )


def _two_that_differ(one: Disagreement) -> tuple[int, int]:
    first, *others = sorted(one.asked)
    return first, next((r for r in others if one.asked[r].what != one.asked[first].what), others[0])


def _issued(one: Disagreement, rank: int) -> str:
    return f"rank {rank} issued {one.asked[rank].what}{at_line(one.asked[rank].place)}"


def _completed_with_garbage(case: Case, one: Disagreement) -> bool:
    """Whether NCCL accepted splits that gloo rejects: rows that were expected but never sent are garbage."""
    return one.kind == "splits" and set(one.asked) == set(case.groups.members(one.group))


def _is_recent(case: Case, one: Disagreement) -> bool:
    if one.recorded:
        return True
    asked = case.asked[(case.asked.group == one.group) & case.asked["rank"].isin(one.asked)]
    last = int(asked.groupby("rank").call.max().min())
    return last <= one.call + CALLS_LATER or still_disagree(case, one, CALLS_LATER)


def _draft(case: Case, one: Disagreement, *, failed: bool) -> Draft:
    found = call_outliers(case, one)
    guilty = found.ranks
    peers = tuple(sorted(set(one.asked) - set(guilty)))
    blamed, blocked = sides(case, guilty, peers)
    first, peer = one.asked[guilty[0]], one.asked[peers[0]] if peers else None
    call = call_name("call", one.call, one.group)
    evidence = {
        f"rank {r} issued {one.asked[r].what} as {call}": one.asked[r].source
        for r in (*guilty[:4], *peers[:4])
    }
    here = first.place
    if one.kind == "root" and here and (chosen := chosen_at(case.cell.code, here)):
        claim = f"the root is chosen{at_line(chosen)}: `{chosen.code}`"
        evidence[claim] = sources.cited(case.cell, chosen.file, chosen.line)
        # Without an outlier the call is the same on all ranks, and only its arguments differ.
        here = here if peer else chosen
    if peer:
        who, theirs = named(case.cell, guilty), f"{named(case.cell, peers)} issued {peer.what}"
        summary = f"{who.capitalize()} issued {first.what} as {call}, where {theirs}: {DIFFER[one.kind]}, and {found.said_of(who)}."
    else:
        summary = (
            f"In {call} {_by_what(case.cell, one)}: {DIFFER[one.kind]}, and it is unknown which is intended."
        )
    return Draft(
        outcome=None if failed else "wrong",
        strength=_strength(found) if peer else Strength.LIKELY,
        summary=summary,
        guilty_ranks=blamed,
        blocked_ranks=blocked,
        at=here or locations.of_rank_now(case.cell.rank(guilty[0])),
        where=Where(collective=one.collective(guilty[0]), step=case.cell.rank(guilty[0]).end.steps),
        peers_at=peer.place if peer else None,
        evidence=evidence,
        fix=FIXES.get(one.kind),
    )


def _strength(found: Outliers) -> Strength:
    """The certainty of who is at fault: what one of two ranks never did before may be what both should have done."""
    return Strength.WEAK if found.criterion == Criterion.NOVEL else Strength.CONCLUSIVE


def _by_what(cell: CellEvidence, one: Disagreement) -> str:
    """Each call with its ranks, for a sentence."""
    by_call: dict[str, list[int]] = {}
    for rank, asked in sorted(one.asked.items()):
        by_call.setdefault(asked.what, []).append(rank)
    return ", ".join(f"{named(cell, ranks)} issued {what}" for what, ranks in [*by_call.items()][:4])


RULE = Rule(
    means={
        "collective_args_mismatch": "Ranks issued the same collective with other sizes, types, splits or root."
    },
    family="structure",
    detected="Ranks issued the same operation under one number of a group, from the same place, with another number of elements, type or root, or with splits that do not match. It outranks exceptions and signals, since what the transport reports or dies of is a consequence. The minority is guilty; without one, the ranks that never passed such arguments at this line before.",
    fix="Pass tensors of one size and type, the same root, and matching splits: pad, cast, or exchange the sizes first.",
    check=collective_args_mismatch,
    needs=("black_boxes",),
    explained_by=("divergent_module_execution",),
    confused_with=("collective_order_mismatch", "missing_rank", "rank_exception"),
)
