"""A process that runs alone in the place of several: its loader yields what theirs would together.

Each sampler that shares a data set among ranks is asked once for every rank, and the job's own `collate_fn` joins the batches.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.proof.journal import journal

_seen: Counter[int] = Counter()


def install(others: str) -> None:
    """Note the loaders; with the run directory of others, join what their samplers would give."""
    plain = DataLoader._index_sampler.fget
    peers = _noted(Path(others)) if others else []

    def index_sampler(self: DataLoader[Any]) -> Any:
        sampler = plain(self)
        dealt = getattr(sampler, "sampler", sampler)
        if not isinstance(dealt, DistributedSampler) or not self._auto_collation:
            return sampler
        if not (first := _seen[id(self)]):
            first = _seen[id(self)] = len(_seen)
            about = {"number": first, "batch": self.batch_size or 0, "replicas": dealt.num_replicas}
            journal.write("loader", 0, name=type(dealt).__name__, **about)
        theirs = next((row for row in peers if row.number == first), None)
        if theirs is None or dealt.num_replicas != 1 or theirs.batch != (self.batch_size or 0):
            return sampler  # it reads a larger batch already
        return Joined(sampler, dealt, theirs.replicas)

    DataLoader._index_sampler = property(index_sampler)


def _noted(run: Path) -> list[Kept]:
    return [row for row in read_rows(Kept, RunDir(path=run).rank(0).proof) if row.what == "loader"]


class Joined:
    """A batch sampler: the batches of all ranks, one behind the other."""

    def __init__(self, sampler: Any, dealt: DistributedSampler[Any], ranks: int) -> None:
        self._sampler, self._dealt, self._ranks = sampler, dealt, ranks

    def _parts(self) -> list[Any]:
        parts = []
        for rank in range(self._ranks):
            part = _of_rank(self._dealt, rank, self._ranks)
            if isinstance(self._sampler, BatchSampler):
                parts.append(copy.copy(self._sampler))
                parts[-1].sampler = part
            else:
                parts.append(part)
        return parts

    def __len__(self) -> int:
        return min(map(len, self._parts()))

    def __iter__(self) -> Iterator[Any]:
        for batches in zip(*self._parts(), strict=False):
            yield [index for batch in batches for index in batch]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _of_rank(dealt: DistributedSampler[Any], rank: int, ranks: int) -> DistributedSampler[Any]:
    """A sampler like it, of one rank of several; its own fields stay."""
    fresh = DistributedSampler(
        dealt.dataset, num_replicas=ranks, rank=rank, shuffle=dealt.shuffle, seed=dealt.seed, drop_last=dealt.drop_last
    )  # fmt: skip
    part = copy.copy(dealt)
    for name in ("num_replicas", "rank", "num_samples", "total_size"):
        setattr(part, name, getattr(fresh, name))
    return part
