"""Modules, parameters and buffers of a model, by name, as `torch.nn.Module` lists them.

Read from where torch keeps them: a class may override what lists them, with effects of its own, and is not to see us ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Each once, a module before those inside it."""
    met: set[int] = set()
    pending: list[tuple[str, torch.nn.Module]] = [("", root)]
    while pending:
        name, module = pending.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield name, module
        inner = [(joined(name, n), m) for n, m in _kept(module, "_modules").items() if m is not None]
        pending += reversed(inner)


def named_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each once, by the first of its names."""
    return _members(root, "_parameters")


def named_buffers(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The same of buffers."""
    return _members(root, "_buffers")


def has_parameters(root: torch.nn.Module) -> bool:
    return next(named_parameters(root), None) is not None


def own_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those of the module itself, without those of the modules inside it."""
    return [(name, buffer) for name, buffer in _kept(module, "_buffers").items() if buffer is not None]


def joined(prefix: str, name: str) -> str:
    """The name of what lies in a module of the name `prefix`."""
    return f"{prefix}.{name}" if prefix else name


def _members(root: torch.nn.Module, kind: str) -> Iterator[tuple[str, Any]]:
    met: set[int] = set()
    for prefix, module in named_modules(root):
        for name, member in list(_kept(module, kind).items()):
            if member is not None and id(member) not in met:
                met.add(id(member))
                yield joined(prefix, name), member


def _kept(module: torch.nn.Module, kind: str) -> Any:
    # A module whose constructor has not called torch's has none of them.
    return module.__dict__.get(kind, {})
