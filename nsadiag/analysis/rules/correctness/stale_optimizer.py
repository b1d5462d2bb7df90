"""Untrained parameters: in layers that replaced those which the optimizer holds, or left out of its groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import module_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Unheld
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed
from nsadiag.source.patterns.single_call import only_assignment, only_call

OF_GROUPS = "Give every parameter that asks for a gradient to an optimizer: check that the groups together hold as many as the model has. Freeze on purpose with requires_grad_(False)."


def stale_optimizer(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that got gradients at several snapshots and never changed: another optimizer would have changed them."""
    if not ran_well(case.cell):
        return
    idle = {rank.rank: names for rank in case.cell.ranks if (names := _never_moved(rank))}
    if not idle:
        yield Declined("no parameter with gradients was outside all optimizers and never changed")
        return
    number, names = next(iter(idle.items()))
    rank, parameter = case.cell.rank(number), names[0]
    row, module = rank.unheld[-1], module_of(parameter) or None
    owner = None if row.stale_count else _owner_of(case, parameter)
    if owner is not None:
        yield Declined(f"the optimizer of rank {owner} holds {parameter}: each rank steps a share of its own")
        return
    strength = _strength(row) if row.stale_count else Strength.LIKELY
    if strength is None:
        return
    seen = (
        f"{parameter} had a gradient and kept its values at steps {listed((r.step for r in rank.unheld), 6)}"
    )
    says = f"no optimizer holds them, although {row.optimizer} holds the rest of {module or 'their modules'}"
    claims, at = [f"{seen}, in no group of an optimizer"], only_call(case.cell.code, row.optimizer)
    if row.stale_count:
        stale = ", ".join(str(list(shape)) for shape in row.stale[:3])
        says = f"no optimizer holds {'it' if len(names) == 1 else 'them'}, and {row.optimizer} holds {row.stale_count} ({stale}) that belong to no module that ran"
        claims = [
            seen,
            f"of the {row.of} parameters of {row.optimizer}, those of shape {stale} had no gradient, and are in no module that ran",
        ]
        at = only_assignment(case.cell.code, (module or "").rpartition(".")[2]) or at
    others = max(row.unheld_count, len(names)) - 1
    yield silent_error(
        case,
        f"{parameter}{f' and {others} more' if others else ''} got gradients in every step and never changed: {says}.",
        dict.fromkeys(claims, f"{rank.source}/unheld.jsonl"),
        at,
        Where(parameter=parameter, module=module, step=row.step, phase="optimizer"),
        None if row.stale_count else OF_GROUPS,
        strength=strength,
        ranks=idle,
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
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rank.unheld:
        for each in row.unheld:
            seen[each.name].append((each.total, each.magnitude))
    last = {name for name, *_ in rank.unheld[-1].unheld} if rank.unheld else set()
    return [name for name, sums in seen.items() if name in last and len(sums) > 1 and len(set(sums)) == 1]


RULE = Rule(
    name="stale_optimizer",
    family="correctness",
    detected="Layers that replaced others after the optimizer was created, or parameters of layers whose others it holds, are in no optimizer, get gradients and never change",
    fix="Create the optimizer when the model is final: after layers are replaced, and after fully_shard or FSDP; or add the new parameters with add_param_group. Freeze deliberately untrained layers with requires_grad_(False).",
    check=stale_optimizer,
    needs=("black_boxes",),
    explained_by=("nonfinite",),
)
