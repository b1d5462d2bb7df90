"""States that are saved and put back: of which kind, and on which line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Written = Callable[..., None]
DEEPEST = 3


def install(written: Written) -> None:
    """From here on each state that is put back is written down, and each file that is read."""
    torch.load = _put(torch.load, "file", written)
    kinds = {
        "model": torch.nn.Module,
        "optimizer": torch.optim.Optimizer,
        "schedule": torch.optim.lr_scheduler.LRScheduler,
    }
    for kind, owner in kinds.items():
        owner.load_state_dict = _put(owner.load_state_dict, kind, written)


def taken(original: Any, written: Written) -> Any:
    """Around torch.save."""

    @functools.wraps(original)
    def save(state: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(state, *args, **kwargs)
        written("saved", notes=sorted(kinds_in(state)))
        return found

    return save


def kinds_in(state: Any, depth: int = 0) -> set[str]:
    """The kinds of state in what is saved, by what torch's own states are made of."""
    if not isinstance(state, dict) or depth > DEEPEST:
        return set()
    if {"state", "param_groups"} <= state.keys():
        return {"optimizer"}
    if "last_epoch" in state:
        return {"schedule"}
    if any(isinstance(each, torch.Tensor) for each in state.values()):
        return {"model"}
    return set().union(*(kinds_in(each, depth + 1) for each in state.values())) if state else set()


def _put(original: Any, kind: str, written: Written) -> Any:
    @functools.wraps(original)
    def put(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        written("put", name=kind)
        return found

    return put
