"""Untrained parameters: in layers that replaced those which the optimizer holds, or left out of its groups."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Unheld
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import only_assignment, only_call


def stale_optimizer(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that got gradients at several snapshots and never changed: another optimizer would have changed them."""
    if case.cell.stopped == "hang" or any(rank.exception for rank in case.cell.ranks):
        return
    idle = {rank.rank: names for rank in case.cell.ranks if (names := _never_moved(rank))}
    if not idle:
        yield Declined("no parameter with gradients was outside all optimizers and never changed")
        return
    number, names = next(iter(idle.items()))
    rank = case.cell.rank(number)
    row = rank.unheld[-1]
    parameter = names[0]
    module = parameter.rpartition(".")[0]
    count = max(row.unheld_count, len(names))
    more = f" and {count - 1} more" if count > 1 else ""
    if not row.stale_count:
        if (owner := _owner_of(case, parameter)) is not None:
            yield Declined(
                f"the optimizer of rank {owner} holds {parameter}: each rank steps a share of its own"
            )
        else:
            yield _left_out(case, tuple(idle), parameter, f"{parameter}{more}")
        return
    strength = _strength(row)
    if strength is None:
        return
    stale = ", ".join(str(list(shape)) for shape in row.stale[:3])
    yield Draft(
        strength=strength,
        summary=(
            f"{parameter}{more} got gradients in every step and never changed: no optimizer holds "
            f"{'it' if len(names) == 1 else 'them'}, and {row.optimizer} holds {row.stale_count} "
            f"({stale}) that belong to no module that ran."
        ),
        guilty_ranks=tuple(idle),
        where=Where(parameter=parameter, module=module or None, step=row.step, phase="optimizer").at(
            only_assignment(case.cell.code, module.rpartition(".")[2])
            or only_call(case.cell.code, row.optimizer)
        ),
        evidence={
            f"{parameter} had a gradient and the same values at steps {', '.join(str(r.step) for r in rank.unheld[:6])}": f"{rank.source}/unheld.jsonl",
            f"of the {row.of} parameters of {row.optimizer}, those of shape {stale} had no gradient, and are in no module that ran": f"{rank.source}/unheld.jsonl",
        },
    )


def _left_out(case: Case, ranks: tuple[int, ...], parameter: str, shown: str) -> Draft:
    rank = case.cell.rank(ranks[0])
    row, module = rank.unheld[-1], parameter.rpartition(".")[0]
    return Draft(
        strength=Strength.LIKELY,
        summary=f"{shown} got gradients in every step and never changed: no optimizer holds them, although {row.optimizer} holds the rest of {module or 'their modules'}.",
        guilty_ranks=ranks,
        where=Where(parameter=parameter, module=module or None, step=row.step, phase="optimizer").at(
            only_call(case.cell.code, row.optimizer)
        ),
        evidence={
            f"{parameter} had a gradient and the same values at steps {', '.join(str(r.step) for r in rank.unheld[:6])}, in no group of an optimizer": f"{rank.source}/unheld.jsonl"
        },
        fix="Give every parameter that asks for a gradient to an optimizer: check that the groups together hold as many as the model has. Freeze on purpose with requires_grad_(False).",
    )


def _owner_of(case: Case, parameter: str) -> int | None:
    """The rank on which an optimizer holds the parameter, where each steps a share of the model (ZeRO)."""
    for rank in case.cell.ranks:
        if not any(each.name == parameter for row in rank.unheld for each in row.unheld):
            return rank.rank
    return None


def _strength(row: Unheld) -> Strength | None:
    """The strength; None if it may be intended: only a head is trained, or a layer is kept for later."""
    if row.alike or row.stale_count == row.of:
        return Strength.STRONG
    return Strength.WEAK if 2 * row.unheld_count < row.graded else None


def _never_moved(rank: RankEvidence) -> list[str]:
    """Parameters that were in no optimizer at two or more snapshots, including the last, with the same sums in all."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for row in rank.unheld:
        for each in row.unheld:
            seen.setdefault(each.name, []).append((each.total, each.magnitude))
    last = {name for name, *_ in rank.unheld[-1].unheld} if rank.unheld else set()
    return [n for n, sums in seen.items() if n in last and len(sums) > 1 and sums.count(sums[0]) == len(sums)]


RULE = Rule(
    name="stale_optimizer",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="Layers that replaced others after the optimizer was created, or parameters of layers whose others it holds, are in no optimizer, get gradients and never change",
    fix="Create the optimizer when the model is final: after layers are replaced, and after fully_shard or FSDP; or add the new parameters with add_param_group. Freeze deliberately untrained layers with requires_grad_(False).",
    check=stale_optimizer,
    needs=("black_boxes",),
    explained_by=("nonfinite",),
    confused_with=("healthy",),
)
