"""A model on the meta device, whose initial values are drawn later, one parameter at a time, bit for bit as at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode

# In-place operations of torch.nn.init, on whole parameters.
_FILLS = frozenset(
    getattr(torch.ops.aten, name).default if name != "fill_" else torch.ops.aten.fill_.Scalar
    for name in ("uniform_", "normal_", "zero_", "fill_")
)
_RANDOM = frozenset((torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default))


class _Fill(NamedTuple):
    """One operation on a parameter."""

    operation: Any
    parameter: Tensor
    shape: torch.Size
    dtype: torch.dtype
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Deferred:
    """A model made on the meta device, and the operations that initialise it, in their order."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        """`make` returns the model, made as on a CPU."""
        record = _Record()
        with torch.device("meta"), record:
            self.model = make()
        self._fills = record.fills
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self._names = [names[id(fill.parameter)] for fill in self._fills]
        missing = set(names.values()) - set(self._names)
        if missing:
            raise RuntimeError(f"nothing initialises {sorted(missing)}")

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """The initial value of each parameter, whole and on the CPU, by name; draws from torch's generator.

        Every operation is repeated, as those that are overwritten draw random numbers too.
        """
        last = {name: i for i, name in enumerate(self._names)}
        for i, (name, fill) in enumerate(zip(self._names, self._fills, strict=True)):
            kept = last[name] == i
            if kept or fill.operation in _RANDOM:
                value = torch.empty(fill.shape, dtype=fill.dtype)
                fill.operation(value, *fill.arguments, **fill.options)
                if kept:
                    yield name, value

    @torch.no_grad()
    def initialise(self, device: torch.device) -> None:
        """Allocate the model, or this rank's shards of it, on `device`, and give it its initial values."""
        self.model.to_empty(device=device)
        parameters = dict(self.model.named_parameters())
        for name, value in self.values():
            _assign(parameters[name], value)


def _assign(parameter: Tensor, value: Tensor) -> None:
    """Copy `value`, or this rank's part of it, cut as fully_shard cuts parameters, into `parameter`."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(value)
        return
    if parameter.placements != (Shard(0),):
        raise RuntimeError(f"a parameter is placed as {parameter.placements}; only Shard(0) is known")
    parts = value.chunk(parameter.device_mesh.size())
    rank = parameter.device_mesh.get_local_rank()
    if rank < len(parts):
        parameter.to_local().copy_(parts[rank])


class _Record(TorchDispatchMode):
    """The in-place operations on tensors of the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.fills: list[_Fill] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        if operation in _FILLS and isinstance(args[0], nn.Parameter):
            first, *arguments = args
            options = {name: value for name, value in (kwargs or {}).items() if value is not None}
            self.fills.append(_Fill(operation, first, first.shape, first.dtype, tuple(arguments), options))
        return out
