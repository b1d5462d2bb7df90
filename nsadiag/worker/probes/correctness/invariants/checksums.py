"""Checksums of tensors: exact ones, by which copies are equal or not, and sums, which say how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nsadiag.worker.probes.autograd.module_tree import is_quiet

# Elements of one tensor, spread over it: of the exact checksum, and of the sums, which cost ten times as much each.
ELEMENTS, SUMMED = 1 << 15, 1 << 11
# Integers of the same width: a sum over them changes with any bit.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements that are read of whole tensors at a step: a millisecond for four million on one core, less than that on a GPU.
WHOLE = {"cpu": 1 << 24, "cuda": 1 << 28}
MOST_WHOLE = 512  # tensors
WORD = 8  # bytes
Checksum = list[Any]  # name, shape, exact, sum, sum of magnitudes


def checksums(named: Sequence[tuple[str, torch.Tensor]]) -> list[Checksum]:
    """A row for each of them; none while a CUDA graph is captured. Each device is waited for twice, however many there are."""
    rows = [(name, own) for name, tensor in named if (own := own_part(tensor)) is not None]
    if not rows or is_captured():
        return []
    with torch.no_grad():
        parts = [_spread(own) for _, own in rows]
        exact = _listed([_exact(part) for part in parts])
        wide = [part[:: -(-part.numel() // SUMMED)].double() for part in parts]
        sums = _listed([s for part in wide for s in (part.sum(), part.abs().sum())])
    return [
        [name, list(own.shape), bits, total, magnitude]
        for (name, own), bits, total, magnitude in zip(rows, exact, sums[::2], sums[1::2], strict=True)
    ]


def whole_sums(tensors: Sequence[torch.Tensor], start: int) -> list[int]:
    """Exact checksums over every bit of as many of them as there is time for, round about from `start`, all on one device."""
    found: list[torch.Tensor] = []
    elements = 0
    if tensors and not is_captured():
        with torch.no_grad():
            for number in range(min(len(tensors), MOST_WHOLE)):
                own = own_part(tensors[(start + number) % len(tensors)])
                elements += own.numel() if own is not None else 0
                if own is None or elements > WHOLE.get(own.device.type, 0):
                    break
                found.append(_whole(own.reshape(-1)))
    return _listed(found) if found else []


def _whole(flat: torch.Tensor) -> torch.Tensor:
    """A sum of its words, which changes with any single bit; of what fills no word, of its elements."""
    each = WORD // flat.element_size()
    # Where it lies must make no difference to its checksum.
    flat = flat.clone() if flat.storage_offset() % each else flat
    words = flat.numel() // each * each
    rest = flat[words:].contiguous().view(BITS[flat.element_size()]).sum(dtype=torch.int64)
    return rest + flat[:words].view(torch.int64).sum() if words else rest


def are_among(copies: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether each of them has the elements of one of these, in its own type."""
    own = [part for copy in copies if (part := own_part(copy)) is not None]
    kinds = {(part.shape, part.dtype) for part in own}
    theirs = [part for tensor in tensors if (part := own_part(tensor)) is not None]
    asked = [(part, dtype) for part in theirs for shape, dtype in kinds if part.shape == shape]
    if not own or not asked or len(asked) > MOST_WHOLE or is_captured():
        return False
    with torch.no_grad():
        found = _listed([_exact(_spread(p).to(d)) for p, d in [*((p, p.dtype) for p in own), *asked]])
    known = {(part.shape, dtype, bits) for (part, dtype), bits in zip(asked, found[len(own) :], strict=True)}
    return all((part.shape, part.dtype, bits) in known for part, bits in zip(own, found, strict=False))


def is_captured() -> bool:
    """Whether a CUDA graph is captured: whoever waits for the device then breaks it."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def exact_sums(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The exact checksum of each, where it lies: nothing is waited for. Zeros while a CUDA graph is captured."""
    if is_captured():
        return [torch.zeros((), dtype=torch.int64) for _ in tensors]
    with torch.no_grad():
        return [_exact(_spread(tensor.detach())) for tensor in tensors]


def own_part(tensor: Any) -> torch.Tensor | None:
    """The part of it that lies on this rank; None where there is nothing to read."""
    if not is_quiet(tensor):
        return None
    own: torch.Tensor = getattr(tensor, "_local_tensor", tensor).detach()
    plain = own.layout == torch.strided and own.device.type != "meta"
    return own if plain and own.numel() and not own.is_complex() else None


def _spread(own: torch.Tensor) -> torch.Tensor:
    flat = own.reshape(-1)
    return flat[:: -(-flat.numel() // ELEMENTS)]


def _exact(part: torch.Tensor) -> torch.Tensor:
    if part.dtype == torch.bool:
        return part.sum(dtype=torch.int64)
    return part.contiguous().view(BITS[part.element_size()]).sum(dtype=torch.int64)


def _listed(numbers: list[torch.Tensor]) -> list[Any]:
    device = numbers[0].device
    found: list[Any] = torch.stack([number.to(device) for number in numbers]).tolist()
    return found
