"""Untrained parameters: in layers that replaced those which the optimizer holds, left out of its groups, or put in after it was made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.analysis.relations.invariants.tensors import copies_of
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import module_of
from nsadiag.analysis.rules.reasons import everyone, in_recorded_steps
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Unheld
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed, shortened
from nsadiag.source.patterns.single_call import last_assignment, only_assignment, only_call

OF_GROUPS = "Give every parameter that asks for a gradient to an optimizer: check that the groups together hold as many as the model has. Freeze on purpose with requires_grad_(False)."


def stale_optimizer(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that got gradients at several snapshots and never changed: another optimizer would have changed them."""
    if not ran_well(case.cell):
        return
    idle = {rank.rank: names for rank in case.cell.ranks if (names := _never_moved(rank))}
    if not idle:
        yield Declined(
            f"on {everyone(case.cell)} no parameter with gradients was outside all optimizers and never changed"
        )
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
    """Parameters that were in no optimizer at two or more snapshots, including the last, with the same sums in all, beside gradients
    that are not what the first one found.
    """
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    gradients: dict[str, list[float | None]] = defaultdict(list)
    for row in rank.unheld:
        for each, gradient in zip_longest(row.unheld, row.gradients[: len(row.unheld)]):
            seen[each.name].append((each.total, each.magnitude))
            gradients[each.name].append(gradient)
    last = {name for name, *_ in rank.unheld[-1].unheld} if rank.unheld else set()
    still = (name for name, sums in seen.items() if name in last and len(sums) > 1 and len(set(sums)) == 1)
    # What lies there from another phase is no gradient of a step.
    return [name for name in still if None in gradients[name] or len(set(gradients[name])) > 1]


def late_parameters(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that were put into a model after its optimizer was made: they get gradients, and nothing ever changes them."""
    unheld = copies_of(case, "unheld").values()
    looks = len({step for copies in unheld for step, _ in copies.at})
    late = [c for c in unheld if len(c.at) >= max(looks, LEAST) and all(map(c.is_still, c.at[0][1]))]
    stepped = (o for step in steps_of(case) for o in step.on_first("step"))
    held_by = next((o for o in stepped if late and (o.optimizer or 0) == late[0].key[0]), None)
    if held_by is None:
        yield from in_recorded_steps(
            case,
            f"{count(len(unheld), 'parameter')} outside all optimizers had gradients, and none stayed as it was",
        )
        return
    name = late[0].name
    module, _, own = name.rpartition(".")
    code = case.cell.code
    assigned = last_assignment(code, own) or last_assignment(code, module.rpartition(".")[2])
    yield silent_error(
        case,
        f"{shortened([c.name for c in late], 1)} got gradients in every step and never changed: put into the model after {held_by.name} was made, it is in no optimizer.",
        f"{name} was registered after the optimizer was made, and had a gradient and kept its values before steps {listed(step for step, _ in late[0].at)}",
        only_call(code, held_by.name) or assigned or held_by.place,
        Where(parameter=name, module=module or None, step=0, phase="optimizer"),
    )


RULE = Rule(
    family="correctness",
    detected="Layers that replaced others after the optimizer was created, or parameters of layers whose others it holds, are in no optimizer, get gradients and never change",
    fix="Create the optimizer when the model is final: after layers are replaced, and after fully_shard or FSDP; or add the new parameters with add_param_group. Freeze deliberately untrained layers with requires_grad_(False).",
    check=stale_optimizer,
    keeps="order",
    needs=("black_boxes",),
    explained_by=("nonfinite",),
)

LATE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) Parameters that were put into a model after its optimizer was made (an adapter, an untied layer) get gradients, are in no optimizer, and never change",
    fix="Create the optimizer when the model is final, or add the new parameters with add_param_group.",
    check=late_parameters,
    keeps="order",
    explained_by=("nonfinite", "stale_optimizer"),
)
