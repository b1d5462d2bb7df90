"""Batches of a stream: on the ranks they are written down; alone, those of all ranks are joined, sample behind sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from nsadiag.evidence.layout import RankDir
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.proof.journal import journal
from nsadiag.worker.proof.stored import read_tensor

MOST_BATCHES = 64  # of a loader

Peer = tuple[RankDir, Sequence[Kept]]


class Stream:
    """An iterator over a loader whose data set is a stream; `count` goes on over epochs."""

    def __init__(self, batches: Iterator[Any], number: int, count: list[int], peers: Sequence[Peer]) -> None:
        self._batches, self._number, self._count, self._peers = batches, number, count, peers

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        place = self._count[0]
        self._count[0] += 1
        with tolerated(Exception):
            if place < MOST_BATCHES:
                leaves, tree = _pytree.tree_flatten(batch)
                if leaves and all(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves):
                    joined = self._of_all(leaves, place) if self._peers else self._note(leaves, place)
                    return _pytree.tree_unflatten(joined, tree)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def _note(self, leaves: list[torch.Tensor], place: int) -> list[torch.Tensor]:
        for argument, leaf in enumerate(leaves):
            journal.write("batch", 0, leaf, number=self._number, argument=argument, batch=place)
        return leaves

    def _of_all(self, leaves: list[torch.Tensor], place: int) -> list[torch.Tensor]:
        """The own where a rank has none of that place, all have the same, or the own is all of it already."""
        every = [self._read(directory, rows, leaves, place) for directory, rows in self._peers]
        apart = list({_key(parts): parts for parts in every}.values())
        shapes = {tuple((leaf.dtype, leaf.shape[1:]) for leaf in parts) for parts in every}
        if not all(every) or len(apart) < 2 or len(shapes) > 1 or len(every[0]) != len(leaves):
            return leaves
        joined = [torch.cat(parts).to(leaf.dtype) for leaf, parts in zip(leaves, zip(*apart, strict=True), strict=True)]  # fmt: skip
        if _samples(joined[0]) == _samples(leaves[0]):
            return leaves
        if not place:
            journal.write("joined", 0)
        return joined

    def _read(
        self, rank: RankDir, rows: Sequence[Kept], leaves: list[torch.Tensor], place: int
    ) -> list[torch.Tensor]:
        found = {row.argument: row for row in rows if row.what == "batch" and (row.number, row.batch) == (self._number, place)}  # fmt: skip
        return [read_tensor(rank, found[n]).to(leaf.dtype) for n, leaf in enumerate(leaves) if n in found]


def _key(parts: list[torch.Tensor]) -> bytes:
    return b"".join(_bytes(part) for part in parts)


def _samples(tensor: torch.Tensor) -> Counter[bytes]:
    return Counter(_bytes(sample) for sample in tensor)


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu()
    found: bytes = (plain.float() if plain.dtype is torch.bfloat16 else plain).contiguous().numpy().tobytes()
    return found
