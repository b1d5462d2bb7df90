"""States of torch's random number generators, of the CPU and of GPUs that are in use: no device is waited for."""

from __future__ import annotations

import zlib

import torch

# Of each generator: the seed that it was given, and all of its state.
States = list[tuple[int, torch.Tensor]]


def states() -> States:
    """The present ones; none of GPUs while one of them records a graph."""
    used = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
    gpus = torch.cuda.default_generators if used else ()
    return [(g.initial_seed(), g.get_state()) for g in (torch.default_generator, *gpus)]


def moved(before: States, after: States) -> list[bool]:
    """By generator: True where random numbers were drawn from it, and it was not seeded in between."""
    if len(before) != len(after):
        return []
    pairs = zip(before, after, strict=True)
    return [one[0] == other[0] and not torch.equal(one[1], other[1]) for one, other in pairs]


def checksum() -> int:
    """One number for all of these states."""
    total = 0
    for _, state in states():
        total = zlib.crc32(bytes(state.tolist()), total)
    return total
