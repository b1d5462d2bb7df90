"""Fingerprints of a step, in a few numbers: its data, its precision, and whether it drew random numbers.

Two runs whose gradients differ are compared only where these say that both were given the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from nsadiag.worker.probes.correctness.sketches import mixed, signs

MOST_ELEMENTS = 1 << 24  # of one tensor: more would take its time
CHUNK = 1 << 20
DIRECTIONS = 4
MOST_NODES = 5000
DEPTH = 4


def tensors_in(value: Any, depth: int = DEPTH) -> Iterator[torch.Tensor]:
    """Those in nested lists, tuples and mappings, in order; no gradient is asked of data."""
    if isinstance(value, torch.Tensor):
        if not value.requires_grad and value.layout == torch.strided and value.ndim and value.numel():
            yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth - 1)


def digest(data: torch.Tensor) -> torch.Tensor | None:
    """Doubles that add up over the rows that ranks and micro-batches share out: the kind, the rows, and four more.

    Of whole numbers: hashes of rows, and of elements wherever they stand. Of others: lengths of the rows along four
    directions, which change little where the data does.
    """
    if data.numel() > MOST_ELEMENTS or data.dtype.is_complex or data.device.type in ("meta", "mps"):
        return None
    rows = data.detach().reshape(data.shape[0], -1)
    columns = torch.arange(rows.shape[1], device=data.device)
    measure = _lengths if data.dtype.is_floating_point else _hashes
    chunk = max(CHUNK // rows.shape[1], 1)
    measured = torch.stack([measure(part, columns) for part in rows.split(chunk)]).sum(0)
    kind = float(data.dtype.is_floating_point)
    head = torch.tensor([kind * rows.shape[0], rows.shape[0]], dtype=torch.float64, device=data.device)
    return torch.cat([head, measured])


def _lengths(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    exact = rows.double()
    directions = [signs(columns * DIRECTIONS + number) for number in range(DIRECTIONS)]
    return torch.stack([(exact * direction).sum(1).abs().sum() for direction in directions])


def _hashes(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    numbers = rows.to(torch.int64)
    by_element = mixed(numbers)
    by_row = mixed((by_element ^ mixed(columns + 1)).sum(1))
    # Doubles hold 53 bits: of each row 40, and of each element 28, leave room for thousands of them to add up exactly.
    found = ((by_row & ((1 << 40) - 1)).sum(), (by_element & ((1 << 28) - 1)).sum())
    return torch.stack([*found, *[torch.zeros_like(found[0])] * (DIRECTIONS - 2)]).double()


def randomness() -> int:
    """A digest of torch's generators: it changes when a number is drawn. Reading them draws none."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return zlib.crc32(b"".join(bytes(state.tolist()) for state in states))


def precisions(roots: list[torch.Tensor]) -> set[str]:
    """The floating dtypes that backward will meet, and `tf32` where matrix products are rounded to it."""
    found: set[str] = {_plain(root.dtype) for root in roots if root.dtype.is_floating_point}
    pending: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(pending)
    convolutions = False
    while pending and len(seen) < MOST_NODES:
        node = pending.pop()
        convolutions |= "Convolution" in type(node).__name__
        for metadata in node._input_metadata:
            if metadata.dtype.is_floating_point:
                found.add(_plain(metadata.dtype))
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)
    if any(root.is_cuda for root in roots) and (
        torch.get_float32_matmul_precision() != "highest"
        or (convolutions and torch.backends.cudnn.allow_tf32)
    ):
        found.add("tf32")
    return found


def autocast() -> set[str]:
    """The dtype of an autocast that is on."""
    return {
        _plain(torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
