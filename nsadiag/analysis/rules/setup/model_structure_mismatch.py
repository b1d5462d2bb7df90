"""Models whose parameters or buffers differ between ranks when they are wrapped; FSDP2's are compared unit by unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.outliers import unlike_most
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED, Raised
from nsadiag.evidence.documents.training import Tensor
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Outcome, Place, Strength, Where
from nsadiag.evidence.spans import shortened

DDP_SAYS = re.compile(
    r"DDP expects same model across all ranks|appears not to match (sizes|strides) of the same param in process"
)
COUNTS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class ModelDifference:
    """A model that differs between the ranks of its group."""

    wrapper: str
    what: str  # "parameters" or "buffers"
    odd: tuple[int, ...]  # ranks whose model differs from the others'
    others: tuple[int, ...]
    says: str  # what differs, in words
    names: tuple[str, ...]  # of what differs
    order_only: bool  # the same tensors in another order: nothing fails, but the wrong ones are averaged
    place: str  # where the outliers wrap it
    file: str  # the document that shows it


def model_structure_mismatch(case: Case) -> Iterator[Draft | Declined]:
    cell, found = case.cell, next(differences(case.cell), None)
    saying = [
        r
        for r in cell.ranks
        if r.exception and DDP_SAYS.search(first_of(r.exception).message) and not _got_nothing(r.exception)
    ]
    if found is None and saying:
        yield _reported(cell, saying)
        return
    if found is None:
        wrapped = [r.rank for r in cell.ranks if r.wraps]
        yield Declined(
            f"the models that {these(wrapped)} wrapped have the same parameters and buffers"
            if wrapped
            else "no rank is known to have wrapped a model"
        )
        return
    outcome = _outcome(cell)
    if saying or found.order_only or outcome != "wrong":
        yield _draft(case, found, saying, outcome)
    else:
        yield Declined(f"{found.says}, and nothing failed", f"{cell.rank(found.odd[0]).source}/{found.file}")


def _got_nothing(exception: Raised) -> bool:
    """Whether DDP compared with a count that never arrived: a model without any parameter is not wrapped."""
    counts = COUNTS.search(first_of(exception).message)
    return counts is not None and "0" in (counts[2], counts[4])


def _outcome(cell: CellEvidence) -> Outcome:
    """Crashed if any rank failed, also if only because a peer was gone."""
    if cell.stopped == "hang" or is_still(cell):
        return "hung"
    failed = first_break(cell) is not None or any(b.kind != "exited" for b in breaks(cell))
    return "crashed" if failed else "wrong"


def _draft(case: Case, found: ModelDifference, saying: list[RankEvidence], outcome: Outcome) -> Draft:
    odd, other = case.cell.rank(found.odd[0]), case.cell.rank(found.others[0])
    waiting = case.thread_states.get(other.rank)
    then = "; the gradients of different parameters are averaged, silently" if outcome == "wrong" else ""
    name = found.names[0] if found.names else None
    evidence = {
        found.says: f"{odd.source}/{found.file}",
        f"rank {other.rank} wrapped a model with other {found.what}": f"{other.source}/{found.file}",
    }
    for rank in saying[:2]:
        message = first_of(rank.exception).message if rank.exception else ""
        claim = f"rank {rank.rank}: {message.splitlines()[0][:200]}"
        evidence[claim] = f"{rank.source}/exception.json"
    return Draft(
        outcome=outcome,
        strength=Strength.CONCLUSIVE if saying else Strength.STRONG,
        summary=f"The model that {named(case.cell, found.odd)} wrapped in {found.wrapper} differs from that of its peers in its {found.what}: {found.says}{then}.",
        guilty_ranks=found.odd,
        blocked_ranks=found.others,
        at=_place(odd, found.place),
        where=Where(parameter=name, module=name.rpartition(".")[0] if name else None, step=odd.end.steps),
        peers_at=waiting.place if waiting else None,
        evidence=evidence,
    )


def _reported(cell: CellEvidence, saying: list[RankEvidence]) -> Draft:
    """A mismatch that DDP reports, without a record of what was wrapped; the numbers of parameters show the outliers."""
    raised = [first_of(rank.exception or NOT_RAISED) for rank in saying]
    message = raised[0].message.splitlines()[0]
    counts: dict[int, str] = {}
    for match in (m for each in raised for m in COUNTS.finditer(each.message)):
        counts |= {int(match[1]): match[2], int(match[3]): match[4]}
    odd = unlike_most(counts) if counts else None
    guilty = odd.ranks if odd and odd.decided else tuple(rank.rank for rank in saying)
    return Draft(
        strength=Strength.STRONG,
        summary=f"The model of {named(cell, guilty)} differs from the one that DDP found on rank 0: {message[:200]}",
        guilty_ranks=guilty,
        at=place_of(raised[0]),
        evidence={message[:300]: f"{saying[0].source}/exception.json"},
        gaps=("what each rank wrapped was not recorded",),
    )


def _place(rank: RankEvidence, wrapped_at: str) -> Place | None:
    """The line that wrapped its model; else where it reported the difference, or was last."""
    said = place_of(first_of(rank.exception)) if rank.exception else None
    return locations.of_text(wrapped_at) or said or locations.of_black_box(rank)


def differences(cell: CellEvidence) -> Iterator[ModelDifference]:
    """The first difference of each wrap, among ranks whose models were recorded, then of FSDP2's units."""
    for index in range(max((len(r.wraps) for r in cell.ranks), default=0)):
        rows = {r.rank: r.wraps[index] for r in cell.ranks if len(r.wraps) > index}
        if len({(row.wrapper, row.ranks) for row in rows.values()}) != 1:
            continue
        wrapper, places = next(iter(rows.values())).wrapper, {rank: row.place for rank, row in rows.items()}
        parameters = {rank: row.parameters for rank, row in rows.items()}
        buffers = {rank: row.buffers for rank, row in rows.items()}
        found = _differ(parameters, places, wrapper, "parameters", "wraps.json")
        found = found or _differ(buffers, places, wrapper, "buffers", "wraps.json")
        if found:
            yield found
    # FSDP2's units are known from the first forward on.
    units = {
        r.rank: [u for u in r.units if u.kind == "FSDP2" and len(u.ranks) == cell.world_size]
        for r in cell.ranks
    }
    models = {
        rank: tuple(Tensor(p.name, p.shape, p.dtype) for unit in own for p in unit.parameters)
        for rank, own in units.items()
        if own
    }
    if found := _differ(models, {}, "fully_shard", "parameters", "units.json"):
        yield found


def _differ(
    models: dict[int, Tensors], places: dict[int, str], wrapper: str, what: str, file: str
) -> ModelDifference | None:
    if len(set(models.values())) < 2:
        return None
    odd = unlike_most(models).ranks
    others = tuple(sorted(models.keys() - set(odd)))
    common = models[others[0]]
    says, names = _in_words(odd[0], models[odd[0]], others[0], common)
    return ModelDifference(
        wrapper=wrapper,
        what=what,
        odd=odd,
        others=others,
        says=says,
        names=names,
        order_only=sorted(models[odd[0]]) == sorted(common),
        place=places.get(odd[0], ""),
        file=file,
    )


def _in_words(odd: int, mine: Tensors, other: int, theirs: Tensors) -> tuple[str, tuple[str, ...]]:
    """The tensors that only one of two ranks has, or that differ in shape or type."""
    by_name, others = {n: (s, d) for n, s, d in mine}, {n: (s, d) for n, s, d in theirs}
    for name, (shape, dtype) in by_name.items():
        if name in others and others[name] != (shape, dtype):
            told, told_other = (
                _shape_and_type(shape, dtype, others[name]),
                _shape_and_type(*others[name], (shape, dtype)),
            )
            return f"{name} is {told} on rank {odd} and {told_other} on rank {other}", (name,)
    extra = [n for n in by_name if n not in others]
    lacking = [n for n in others if n not in by_name]
    if extra or lacking:
        parts = [f"has {len(mine)} instead of {len(theirs)}"] if len(mine) != len(theirs) else []
        parts += [f"only it has {shortened(extra, 3)}"] if extra else []
        parts += [f"it lacks {shortened(lacking, 3)}"] if lacking else []
        return f"rank {odd} " + "; ".join(parts), tuple(extra or lacking)
    moved = next(a[0] for a, b in zip(mine, theirs, strict=False) if a != b)
    return f"rank {odd} has the same names in another order, from {moved} on", (moved,)


def _shape_and_type(shape: tuple[int, ...], dtype: str, other: tuple[tuple[int, ...], str]) -> str:
    return str(list(shape)) + (f" {dtype.removeprefix('torch.')}" if dtype != other[1] else "")


RULE = Rule(
    means={"model_structure_mismatch": "The ranks wrapped models whose parameters or buffers differ."},
    family="structure",
    detected="Every tensor that a rank handed to DDP or FSDP is recorded, with name, shape and type, before the wrapper talks to its peers; the models differ. The minority is guilty; without one, the ranks that differ from the group's first rank. If only the order of the tensors differs nothing fails, and the outcome is `wrong`.",
    fix="Build the same model on every rank: size it from what all ranks share (rank 0's vocabulary, broadcast), and add nothing to it under a condition on the rank or its data.",
    check=model_structure_mismatch,
    needs=("black_boxes",),
    confused_with=("collective_args_mismatch", "rank_exception"),
)
