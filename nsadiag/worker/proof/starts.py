"""One process starts from the parameters that the ranks start from: each draws its shard's from a seed of its own, for example."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import RankDir, RunDir
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.probes.correctness.shards import Named
from nsadiag.worker.proof.stored import read_tensor

FLOATS = ("f4", "f8")


class Starts:
    """The first values that the ranks of a run held, by name."""

    def __init__(self, others: str) -> None:
        self._held: dict[str, list[tuple[RankDir, Kept]]] = {}
        self._given: set[str] = set()
        for rank in RunDir(path=Path(others)).ranks() if others else ():
            seen: set[str] = set()
            for row in read_rows(Kept, rank.proof):
                if row.what == "parameter" and row.name not in seen:
                    seen.add(row.name)
                    self._held.setdefault(row.name, []).append((rank, row))

    def give(self, named: Named) -> bool:
        """Puts them into the parameters of these names; True where any was another before."""
        moved = False
        for parameter, name in named.values():
            if name in self._given or hasattr(parameter, "_local_tensor"):
                continue
            self._given.add(name)
            value = self._whole(name, parameter)
            if value is not None and not torch.allclose(value, parameter.double(), rtol=1e-6, atol=1e-12):
                with torch.no_grad():
                    parameter.copy_(value.to(parameter.dtype))
                moved = True
        return moved

    def _whole(self, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        """None where the ranks do not agree on one, or what they hold does not add up to it."""
        held = self._held.get(name, [])
        if not held or any(row.stored not in FLOATS for _, row in held):
            return None
        if any(row.at is not None or (row.run is not None and row.local != row.shape) for _, row in held):
            return self._placed(held, parameter)
        parts = [read_tensor(rank, row).double() for rank, row in held]
        if all(part.shape == parameter.shape for part in parts):
            return parts[0] if all(torch.equal(part, parts[0]) for part in parts) else None
        return _joined(parts, parameter)

    def _placed(self, held: list[tuple[RankDir, Kept]], parameter: torch.Tensor) -> torch.Tensor | None:
        """Parts of which torch says where they lie."""
        if any(row.shape != tuple(parameter.shape) for _, row in held):
            return None
        whole = torch.full(parameter.shape, math.nan, dtype=torch.float64)
        for rank, row in held:
            part = read_tensor(rank, row).double()
            if row.at is not None:
                whole[tuple(slice(start, start + size) for start, size in row.at)] = part
            elif row.run is not None:
                whole.view(-1)[row.run[0] : row.run[1]] = part.reshape(-1)
        return None if whole.isnan().any() else whole


def _joined(parts: list[torch.Tensor], parameter: torch.Tensor) -> torch.Tensor | None:
    """Shards of one dimension, in the order of the ranks; unless the whole is made of the very same rows already."""
    apart = [
        p for n, p in enumerate(parts) if not any(p.shape == q.shape and torch.equal(p, q) for q in parts[:n])
    ]
    shape, first = tuple(parameter.shape), apart[0]
    other = [d for d in range(len(shape)) if first.dim() == len(shape) and first.shape[d] != shape[d]]
    if len(other) != 1 or sum(p.shape[other[0]] for p in apart) != shape[other[0]]:
        return None
    whole = torch.cat(apart, other[0])
    rows = {row.numpy().tobytes() for row in parameter.detach().double().unbind(other[0])}
    if all(row.contiguous().numpy().tobytes() in rows for row in whole.unbind(other[0])):
        return None
    return whole
