"""Results of calls, from the inputs of all members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size and dtype of a flat tensor; the tensor itself may be gone when its values arrive."""

    count: int
    dtype: torch.dtype

    @property
    def element_size(self) -> int:
        return int(self.dtype.itemsize)


def shape_of(tensor: torch.Tensor) -> Shape:
    """Size and dtype of a tensor's elements."""
    return Shape(count=tensor.numel(), dtype=tensor.dtype)


def read(data: bytes, like: Sequence[Shape]) -> list[torch.Tensor]:
    """Flat tensors out of the bytes of tensors of these sizes and dtypes. Raises ValueError where they are other bytes."""
    found, at = [], 0
    for shape in like:
        size = shape.count * shape.element_size
        part = data[at : at + size]
        if len(part) != size:
            raise ValueError(f"{len(part)} bytes for {shape.count} elements of {shape.dtype}")
        empty = torch.empty(0, dtype=shape.dtype)
        found.append(torch.frombuffer(bytearray(part), dtype=shape.dtype) if size else empty)
        at += size
    return found


def write(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Through `.data`: the version counters of autograd stay as a backend leaves them."""
    tensor.data.copy_(flat.reshape(tensor.shape))


def reduced(values: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """All members' values in one. Raises ValueError for a reduction that is unknown."""
    if not values[0].numel():
        return values[0]
    if reduction not in REDUCTIONS:
        raise ValueError(f"no such reduction: {reduction}")
    return REDUCTIONS[reduction](torch.stack(list(values)))


def _bitwise(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    def of(stacked: torch.Tensor) -> torch.Tensor:
        result = stacked[0]
        for value in stacked[1:]:
            result = function(result, value)
        return result

    return of


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda x: x.sum(0, dtype=x.dtype),
    "PREMUL_SUM": lambda x: x.sum(0, dtype=x.dtype),
    "AVG": lambda x: (x.sum(0) / len(x)).to(x.dtype),
    "PRODUCT": lambda x: x.prod(0, dtype=x.dtype),
    "MIN": lambda x: x.amin(0),
    "MAX": lambda x: x.amax(0),
    "BAND": _bitwise(torch.bitwise_and),
    "BOR": _bitwise(torch.bitwise_or),
    "BXOR": _bitwise(torch.bitwise_xor),
}
