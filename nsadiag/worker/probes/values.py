"""Values of the job's, looked into without running code of theirs: proxies, lazy objects and own containers are not woken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def is_a(value: Any, *kinds: type) -> bool:
    """`isinstance` by the type alone: a proxy is asked for its `__class__` by the other."""
    return issubclass(type(value), kinds)


def items_of(value: Any) -> Iterable[Any]:
    """Elements of a mapping, list or tuple; none of anything else."""
    if is_a(value, dict):
        return dict.values(value)
    if is_a(value, list):
        return list.__iter__(value)
    return tuple.__iter__(value) if is_a(value, tuple) else ()


def tensors_among(values: Iterable[Any], depth: int = 4) -> Iterator[torch.Tensor]:
    """Tensors among them, also of those in a mapping or a sequence (a batch as a dictionary)."""
    for value in values:
        if is_a(value, torch.Tensor):
            yield value
        elif depth:
            yield from tensors_among(items_of(value), depth - 1)


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """The groups that an optimizer holds itself; none of one that makes or fetches them when it is asked."""
    groups = object.__getattribute__(optimizer, "__dict__").get("param_groups")
    return groups if is_a(groups, list) else []


def own_elements(tensor: Any) -> int:
    """Number of its elements on this rank: of few rows, some ranks hold none."""
    return int(getattr(tensor, "_local_tensor", tensor).numel())


def stepped_by(optimizer: Any) -> list[torch.Tensor]:
    """The parameters of its groups."""
    return [p for group in groups_of(optimizer) for p in group["params"]]
