"""The ledger of states: sums over all that an optimizer trains and keeps, where a state is taken and at the first step after one is put back."""

from __future__ import annotations

import functools
import types
import zlib
from typing import Any

import torch

from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import whole_sums
from nsadiag.worker.probes.correctness.invariants.journal import current, journal
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.training import optimizer as steps
from nsadiag.worker.probes.values import groups_of, is_a, items_of, stepped_by, tensors_among

WORD = 1 << 63  # sums are kept within a signed word
# What a scheduler changes while it goes on: the rest is what it was made with.
MOVES = frozenset(
    (
        "_get_lr_called_within_step",
        "_is_initial",
        "_last_lr",
        "_step_count",
        "T_cur",
        "T_i",
        "best",
        "cooldown_counter",
        "last_epoch",
        "num_bad_epochs",
    )
)
DEEP = 8


def entry(optimizer: Any) -> dict[str, Any]:
    """Sums over its parameters and its state; empty on a GPU that the probe `invariants` was not asked to wait for."""
    held = stepped_by(optimizer)
    kept = list(tensors_among([object.__getattribute__(optimizer, "__dict__").get("state")]))
    if not journal.valued and any(tensor.device.type != "cpu" for tensor in (*held, *kept)):
        return {}
    return {"exact": _sum(held), "state": _sum(kept)}


def _sum(tensors: list[torch.Tensor]) -> int:
    return sum(whole_sums(tensors, 0)) % WORD


def course(scheduler: Any) -> int:
    """A checksum of what it was made with: numbers, names, and the lines and values of functions."""
    return zlib.crc32(repr(_described(scheduler, DEEP)).encode())


def _described(value: Any, deep: int) -> Any:
    """By types alone: no code of the user's runs. What is not known counts for nothing."""
    if type(value) in (bool, int, float, str) or not deep:
        return value if deep else None
    if is_a(value, list, tuple, dict):
        return [_described(each, deep - 1) for each in items_of(value)]
    if type(value) is functools.partial:
        return [_described(each, deep - 1) for each in (value.func, value.args, value.keywords)]
    if type(value) is types.FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        code = value.__code__
        return [code.co_name, code.co_firstlineno, _described([*cells, value.__defaults__], deep - 1)]
    if is_a(value, torch.optim.lr_scheduler.LRScheduler):
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
        return [(k, _described(v, deep - 1)) for k, v in sorted(own.items()) if k not in MOVES]
    return None


def settings(optimizer: Any) -> list[str]:
    """Hyperparameters of each group, as text; a tensor may be on a GPU that nobody waits for."""
    plain = (bool, int, float, str, tuple)
    return [
        " ".join(f"{k}={v}" for k, v in sorted(group.items()) if k != "params" and isinstance(v, plain))
        for group in groups_of(optimizer)[:16]
    ]


def await_step() -> None:
    """A state was put back: the next step of an optimizer shows what came of it."""
    if _stepping not in steps.before_step:
        steps.before_step.append(_stepping)


@harmless
def _stepping(optimizer: Any) -> None:
    forget()
    rank = current()
    if rank is not None:
        journal.note(
            "back",
            always=rank,
            name=type(optimizer).__name__,
            optimizer=roles.stepping(optimizer),
            settings=settings(optimizer),
            **entry(optimizer),
        )


def forget() -> None:
    """No step is awaited."""
    if _stepping in steps.before_step:
        steps.before_step.remove(_stepping)
