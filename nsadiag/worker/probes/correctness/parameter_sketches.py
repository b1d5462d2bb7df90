"""Rows of parity.jsonl: each part of a parameter that lies here, with sketches of its value and gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.probes.correctness.shards import Piece
from nsadiag.worker.probes.correctness.sketches import BUCKETS, sketch_box, sketch_run


def rows_of(pieces: list[Piece], *, values: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and what could not be read; `values` asks for the parameters themselves, too."""
    sketches, of, failed = [], [], []
    for piece in pieces:
        try:
            tensors = ([piece.value] if values else []) + ([] if piece.gradient is None else [piece.gradient])
            sketches.append(_sketch(piece, tensors) if tensors else torch.empty(0, BUCKETS + 1))
            of.append(piece)
        except Exception as error:
            pass_on(error)
            failed.append(f"{piece.name}: {error!r}")
    return [
        _row(piece, values, iter(numbers)) for piece, numbers in zip(of, _on_the_host(sketches), strict=True)
    ], failed


def _sketch(piece: Piece, tensors: list[torch.Tensor]) -> torch.Tensor:
    if piece.run is not None:
        return sketch_run(tensors, piece.run[0])
    assert piece.box is not None
    return sketch_box(tensors, piece.shape, piece.box)


def _on_the_host(sketches: list[torch.Tensor]) -> list[list[list[float]]]:
    """One wait for each device, however many parameters."""
    found: list[list[list[float]]] = [[] for _ in sketches]
    by_device: dict[torch.device, list[int]] = {}
    for number, sketch in enumerate(sketches):
        by_device.setdefault(sketch.device, []).append(number)
    for numbers in by_device.values():
        rows = iter(torch.cat([sketches[n] for n in numbers]).tolist())
        for n in numbers:
            found[n] = [next(rows) for _ in range(len(sketches[n]))]
    return found


def _row(piece: Piece, values: bool, numbers: Iterator[list[float]]) -> dict[str, Any]:
    return {
        "name": piece.name,
        "shape": list(piece.shape),
        "at": list(piece.run) if piece.run is not None else [list(pair) for pair in piece.box or ()],
        "dtype": str(piece.value.dtype).removeprefix("torch."),
        **({"value": _shown(next(numbers))} if values else {}),
        "gradient": None if piece.gradient is None else _shown(next(numbers)),
    }


def _shown(numbers: list[float]) -> list[float] | str:
    if not all(map(math.isfinite, numbers)):
        return "not finite"
    return [float(f"{number:.12g}") for number in numbers]
