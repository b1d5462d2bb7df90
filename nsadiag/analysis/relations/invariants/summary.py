"""The invariants of a run as facts that a later run can be checked against, whatever its number of ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple, TypeAlias

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.losses import terms_of
from nsadiag.analysis.relations.invariants.operations import settings_of, steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    copies_of,
    equal,
    inputs_differ,
    inputs_of,
    is_constant,
    parameters_of,
)
from nsadiag.evidence.documents.operations import Operation

OF_A_STEP = frozenset({"forward", "backward", "collective", "clip", "unscale", "step"})
Fact: TypeAlias = "str | int | list[str]"  # a flag is an int, too
Facts: TypeAlias = "dict[str, Fact]"


class Broken(NamedTuple):
    """A fact of a good run that a later one does not keep."""

    fact: str
    kept: Fact
    found: Fact | None


def facts_of(case: Case) -> Facts:
    """By name; those on tensors only where the probe `invariants` read them. Empty where no step was recorded on all ranks."""
    steps = steps_of(case)
    if not steps:
        return {}
    found: Facts = {"operations of a step": _order(case)}
    for operation in steps[0].on_first("step"):
        name = f"optimizer {operation.optimizer or 0}"
        found[name] = [operation.name, *_settings(operation)]
        found[f"{name}: parameters"] = operation.of
        found[f"{name}: learning rates"] = _rates(case, operation.optimizer or 0)
    if inputs_of(case):
        found["inputs"] = "differ" if inputs_differ(case) else "equal on all ranks"
    terms = terms_of(case)
    if terms:
        found["loss"] = "mean" if all(t.mean for each in terms.values() for t in each.values()) else "sum"
    return found | _tensors(case)


def broken(kept: Facts, found: Facts) -> list[Broken]:
    """Statements of both that differ, and parameters that were trained and are gone."""
    return [
        Broken(fact=name, kept=value, found=found.get(name))
        for name, value in kept.items()
        if found.get(name) != value and (name in found or name.startswith("optimizer"))
    ]


def _order(case: Case) -> list[str]:
    """Operations in their order, each once where it repeats: as in most steps of the first rank."""
    orders = Counter(
        tuple(name for name, _ in itertools.groupby(map(_named, step.on_first(*OF_A_STEP))))
        for step in steps_of(case)
    )
    return list(orders.most_common(1)[0][0])


def _named(operation: Operation) -> str:
    if operation.kind != "collective":
        return " ".join(part for part in (operation.kind, operation.name) if part)
    roles = {role.partition(" ")[0].rstrip("s") for role in operation.roles}
    return " ".join(part for part in (operation.name, operation.reduces, *sorted(roles)) if part)


def _settings(operation: Operation) -> list[str]:
    """Hyperparameters by group, without the learning rate, which follows a schedule."""
    return [
        " ".join(w for w in text.split() if not w.startswith(("lr=", "initial_lr=")))
        for text in operation.settings
    ]


def _rates(case: Case, optimizer: int) -> list[str]:
    """Those of steps 0 to 3."""
    early = (o for step in steps_of(case) if step.number < 4 for o in step.on_first("step"))
    own = (group for o in early if (o.optimizer or 0) == optimizer for group in settings_of(o))
    return [f"lr={group['lr']}" for group in own if "lr" in group]


def _tensors(case: Case) -> Facts:
    found: Facts = {}
    used = copies_of(case, "used")
    for copies in parameters_of(case):
        name, graded = copies.name, used.get(copies.key)
        found[f"copies of {name}"] = (
            "equal" if copies.is_kept else "drift" if copies.held else "each rank's own"
        )
        found[f"{name} is trained"] = copies.moves() > 0
        found[f"gradients of {name}"] = "as used, " + (
            "none" if graded is None else "equal" if graded.is_kept else "differ between ranks"
        )
    for copies in copies_of(case, "buffers").values():
        step, values = copies.at[-1]
        if step == steps_of(case)[-1].number and not all(map(is_constant, values.values())):
            found[f"copies of buffer {copies.name}"] = "equal" if equal(values) else "differ between ranks"
    return found
