"""Linear sketches of tensors: a few numbers whose differences tell how far two tensors are from each other.

Each element is given a sign by a hash of its place in the full parameter, and added to the bucket that its place
falls into. Sketches of shards therefore add up to the sketch of the whole, whoever holds which part; and the squared
length of a difference of two sketches is, on average, that of the difference of the tensors (Charikar, Chen and
Farach-Colton, "Finding frequent items in data streams", 2002). No collective, no generator, no autograd node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BUCKETS = 31  # no power of two: columns of a matrix would all fall into few
CHUNK = {"cpu": 1 << 16}  # elements at a time: a CPU's cache
CHUNK_ELSEWHERE = 1 << 20
# Odd 64-bit constants of splitmix64 and xxHash, as signed numbers.
_MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)

Box = tuple[tuple[int, int], ...]  # (offset, size) in each dimension of the full tensor


def mixed(numbers: torch.Tensor) -> torch.Tensor:
    """A hash of each int64, in a new tensor; products wrap around."""
    first, second, third = _MULTIPLIERS
    h = numbers * first
    h ^= h >> 29
    h *= second
    h ^= h >> 32
    h *= third
    return h


def signs(index: torch.Tensor) -> torch.Tensor:
    """1 or -1 by the top bit of the hash."""
    h = mixed(index)
    h >>= 63
    h |= 1
    return h


def strides_of(shape: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor, in elements."""
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def run_of(shape: Sequence[int], box: Box) -> tuple[int, int] | None:
    """Begin and end of the box in the flattened tensor, None where it is not one run of elements."""
    strides = strides_of(shape)
    begin = sum(offset * stride for (offset, _), stride in zip(box, strides, strict=True))
    count = math.prod(size for _, size in box)
    first = next((n for n, (_, size) in enumerate(box) if size > 1), len(box))
    whole = all(size == full for (_, size), full in zip(box[first + 1 :], shape[first + 1 :], strict=True))
    return (begin, begin + count) if whole else None


def sketch_run(tensors: Sequence[torch.Tensor], begin: int) -> torch.Tensor:
    """Sketches of tensors that hold the elements from `begin` on of the flattened whole: [tensors, BUCKETS + 1], on their device.

    The last column is the sum of squares.
    """
    flat = [t.detach().reshape(-1) for t in tensors]
    sums = _zeros(flat)
    for at, stop, part in _chunks(flat):
        first = begin + at
        index = torch.arange(first, begin + stop, device=part.device)
        front = first % BUCKETS
        columns = -(-(front + stop - at) // BUCKETS) * BUCKETS
        padded = part.new_zeros(len(flat), columns)
        torch.mul(part, signs(index), out=padded[:, front : front + stop - at])
        sums[:, :BUCKETS] += padded.view(len(flat), -1, BUCKETS).sum(1)
        sums[:, BUCKETS] += (part * part).sum(1)
    return sums


def sketch_box(tensors: Sequence[torch.Tensor], shape: Sequence[int], box: Box) -> torch.Tensor:
    """The same of a part of the full tensor of `shape` that is no run of its elements."""
    flat = [t.detach().reshape(-1) for t in tensors]
    strides = strides_of(shape)
    sums = _zeros(flat)
    for at, stop, part in _chunks(flat):
        left = torch.arange(at, stop, device=part.device)
        index = torch.zeros_like(left)
        for (offset, size), stride in zip(reversed(box), reversed(strides), strict=True):
            index += (left % size + offset) * stride
            left //= size
        sums[:, :BUCKETS].index_add_(1, index % BUCKETS, part * signs(index))
        sums[:, BUCKETS] += (part * part).sum(1)
    return sums


def _zeros(flat: list[torch.Tensor]) -> torch.Tensor:
    # Apple's GPUs have no doubles.
    exact = torch.float32 if flat[0].device.type == "mps" else torch.float64
    return torch.zeros(len(flat), BUCKETS + 1, dtype=exact, device=flat[0].device)


def _chunks(flat: list[torch.Tensor]):  # type: ignore[no-untyped-def]
    """(begin, end, [tensors, elements] in doubles): memory stays bounded whatever the parameter's size."""
    exact = _zeros(flat).dtype
    chunk = CHUNK.get(flat[0].device.type, CHUNK_ELSEWHERE)
    count = flat[0].numel()
    for at in range(0, count, chunk):
        stop = min(at + chunk, count)
        yield at, stop, torch.stack([t[at:stop].to(exact) for t in flat])
