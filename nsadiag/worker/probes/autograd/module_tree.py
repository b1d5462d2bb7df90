"""Modules, parameters and buffers of a model, by name, as `torch.nn.Module` lists them.

Read from where torch keeps them: a class may override what lists them, with effects of its own, and is not to see us ask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch


def is_quiet(tensor: torch.Tensor) -> bool:
    """Whether nobody but torch sees what is computed of it: a class of the user's may watch or refuse operations."""
    watched = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not watched or hasattr(tensor, "_local_tensor")


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
    return ((name, parameter) for name, parameter, _, _ in _members(root, "_parameters"))


def housed_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, torch.nn.Module]]:
    """`named_parameters`, each with the module that it lies in."""
    return ((name, parameter, module) for name, parameter, module, _ in _members(root, "_parameters"))


class Reference:
    """A parameter, by the module that holds it, for as long as it does; called, it answers with the parameter or None.

    No weak reference to a tensor: torch does not swap a tensor that has one, and `Module.to` swaps subclasses.
    """

    __slots__ = ("_id", "_module", "_name")

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        parameter: torch.Tensor,
        gone: Callable[[Any], object] | None = None,
    ) -> None:
        self._module, self._name, self._id = weakref.ref(module, gone), name, id(parameter)

    def __call__(self) -> Any:
        module = self._module()
        held = _kept(module, "_parameters").get(self._name) if module is not None else None
        return held if id(held) == self._id else None


def referenced_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, Reference]]:
    """`named_parameters`, and how each can be found again."""
    for name, parameter, module, own_name in _members(root, "_parameters"):
        yield name, parameter, Reference(module, own_name, parameter)


def named_buffers(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The same of buffers."""
    return ((name, buffer) for name, buffer, _, _ in _members(root, "_buffers"))


def has_parameters(root: torch.nn.Module) -> bool:
    return next(named_parameters(root), None) is not None


def own_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those of the module itself, without those of the modules inside it."""
    return [(name, buffer) for name, buffer in _kept(module, "_buffers").items() if buffer is not None]


def attributes_of(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes of the module itself, past a `__getattribute__` of its class."""
    held: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return held


def is_training(module: torch.nn.Module) -> bool:
    # Where it is not in there the module is no user's (a scripted one): asking it would run its code.
    return bool(attributes_of(module).get("training", True))


def joined(prefix: str, name: str) -> str:
    """The name of what lies in a module of the name `prefix`."""
    return f"{prefix}.{name}" if prefix else name


def _members(root: torch.nn.Module, kind: str) -> Iterator[tuple[str, Any, torch.nn.Module, str]]:
    met: set[int] = set()
    for prefix, module in named_modules(root):
        for name, member in list(_kept(module, kind).items()):
            if member is not None and id(member) not in met:
                met.add(id(member))
                yield joined(prefix, name), member, module, name


def _kept(module: torch.nn.Module, kind: str) -> Any:
    # A module whose constructor has not called torch's has none of them.
    return attributes_of(module).get(kind, {})
