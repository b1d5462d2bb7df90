"""Models whose parameters or buffers differ between ranks when they are wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.outliers import MAJORITY, UNLIKE_FIRST, Behaviour, outliers
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.reasons import these
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.analysis.rules.setup.model_structure import Difference, differences
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.records import Outcome, Place, Strength, Where

DDP_SAYS = re.compile(
    r"DDP expects same model across all ranks|appears not to match (sizes|strides) of the same param in process"
)
COUNTS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
FIX = "Build the same model on every rank: size it from what all ranks share (rank 0's vocabulary, broadcast), and add nothing to it under a condition on the rank or its data."


def _says_so(rank: RankEvidence) -> bool:
    return bool(rank.exception and DDP_SAYS.search(first_of(rank.exception).message))


def _broke(cell: CellEvidence) -> bool:
    """Crashed if any rank failed, also if only because a peer was gone."""
    return first_break(cell) is not None or any(b.kind != "exited" for b in breaks(cell))


def _failed(cell: CellEvidence) -> bool:
    return is_still(cell) or cell.stopped == "hang" or _broke(cell)


def model_structure_mismatch(case: Case) -> Iterator[Draft | Declined]:
    found = differences(case.cell)
    saying = [r for r in case.cell.ranks if _says_so(r)]
    if found and (saying or _failed(case.cell) or found[0].order_only):
        yield _seen(case, found[0], saying)
    elif saying:
        yield _said(case.cell, saying)
    elif not found:
        wrapped = [r.rank for r in case.cell.ranks if r.wraps]
        yield Declined(
            f"the models that {these(wrapped)} wrapped have the same parameters and buffers"
            if wrapped
            else "no rank is known to have wrapped a model"
        )
    else:
        yield Declined(
            f"{found[0].says}, and nothing failed",
            f"{case.cell.rank(found[0].odd[0]).source}/{found[0].file}",
        )


def _outcome(cell: CellEvidence) -> Outcome:
    if cell.stopped == "hang" or is_still(cell):
        return "hung"
    return "crashed" if _broke(cell) else "wrong"


def _place(rank: RankEvidence, wrapped_at: str) -> Place | None:
    """The line that wrapped its model; else where it reported the difference, or was last."""
    said = place_of(first_of(rank.exception)) if rank.exception else None
    return locations.of_text(wrapped_at) or said or locations.of_black_box(rank)


def _seen(case: Case, found: Difference, saying: list[RankEvidence]) -> Draft:
    odd, other = case.cell.rank(found.odd[0]), case.cell.rank(found.others[0])
    who = f"rank {case.cell.names(found.odd)}"
    wait = case.thread_states.get(other.rank)
    wrong = _outcome(case.cell) == "wrong"
    then = "; the gradients of different parameters are averaged, silently" if wrong else ""
    return Draft(
        outcome=_outcome(case.cell),
        strength=Strength.CONCLUSIVE if saying else Strength.STRONG,
        summary=f"The model that {who} wrapped in {found.wrapper} differs from that of its peers: {found.says} ({found.what}){then}.",
        guilty_ranks=found.odd,
        blocked_ranks=found.others,
        where=Where(
            parameter=found.names[0] if found.names else None,
            module=found.names[0].rpartition(".")[0] if found.names else None,
            step=odd.end.steps,
        ).at(_place(odd, found.place)),
        peers_at=wait.place if wait else None,
        evidence={
            found.says: f"{odd.source}/{found.file}",
            f"what rank {other.rank} wrapped": f"{other.source}/{found.file}",
            **{
                f"rank {r.rank}: {first_of(r.exception or NOT_RAISED).message.splitlines()[0][:200]}": f"{r.source}/exception.json"
                for r in saying[:2]
            },
        },
        fix=FIX,
    )


def _odd_counts(saying: list[RankEvidence]) -> tuple[int, ...]:
    """The ranks that have an unusual number of parameters by DDP's messages."""
    counts: dict[int, int] = {}
    for rank in saying:
        for match in COUNTS.finditer(first_of(rank.exception or NOT_RAISED).message):
            counts |= {int(match[1]): int(match[2]), int(match[3]): int(match[4])}
    if not counts:
        return ()
    found = outliers({r: Behaviour(now=n) for r, n in counts.items()}, (MAJORITY, UNLIKE_FIRST))
    return found.ranks if found.decided else ()


def _said(cell: CellEvidence, saying: list[RankEvidence]) -> Draft:
    """A mismatch that DDP reports, without a record of what was wrapped."""
    rank = saying[0]
    exception = first_of(rank.exception or NOT_RAISED)
    guilty = _odd_counts(saying) or tuple(r.rank for r in saying)
    return Draft(
        outcome=_outcome(cell),
        strength=Strength.STRONG,
        summary=f"The model of rank {cell.names(guilty)} differs from the one that DDP found on rank 0: {exception.message.splitlines()[0][:200]}",
        guilty_ranks=guilty,
        blocked_ranks=all_but(cell, guilty),
        where=Where().at(place_of(exception)),
        evidence={exception.message.splitlines()[0][:300]: f"{rank.source}/exception.json"},
        gaps=("what each rank wrapped was not recorded",),
        fix=FIX,
    )


RULE = Rule(
    name="model_structure_mismatch",
    means={"model_structure_mismatch": "The ranks wrapped models whose parameters or buffers differ."},
    family="structure",
    detected="The name, shape and type of each tensor that every rank handed to DDP or FSDP, recorded before the wrapper talks to its peers. The minority is guilty; without one, whichever ranks differ from the group's first rank. If only the order of the tensors differs nothing fails, and the outcome is `wrong`",
    fix="Build the same model on every rank: size it from what all ranks share, and add nothing to it under a condition on the rank or its data.",
    check=model_structure_mismatch,
    needs=("black_boxes",),
    confused_with=("collective_args_mismatch", "rank_exception"),
)
