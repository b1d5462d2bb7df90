"""A process that runs alone in the place of several: its loader yields what theirs would together.

Each sampler that shares a data set among ranks is asked once for every rank; of another, the indices that it gave each rank are
read from their record, and the job's own `collate_fn` joins the batches. Of a stream the batches themselves are.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.distributed import DistributedSampler

from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.proof.journal import journal
from nsadiag.worker.proof.streams import Peer, Stream

MOST_BATCHES = 256  # of a loader, whose indices are noted

NUMBER = "_nsadiag_number"  # of a loader, in the order in which they are asked
COUNT = "_nsadiag_count"  # of batches that it gave
KEPT = "_nsadiag_sampler"  # what stands in for its sampler in all epochs

_count = 0
_peers: list[Peer] = []


def join(others: str) -> None:
    """From here on, with the run directory of others, what their samplers would give, or gave, is joined."""
    directories = RunDir(path=Path(others)).ranks() if others else []
    _peers[:] = [(rank, read_rows(Kept, rank.proof)) for rank in directories]


def install() -> None:
    """Note the loaders."""
    plain = DataLoader._index_sampler.fget
    iterated = DataLoader.__iter__

    def index_sampler(self: DataLoader[Any]) -> Any:
        sampler = plain(self)
        if not self._auto_collation:
            return sampler
        dealt = getattr(sampler, "sampler", sampler)
        number, peers = _noted(self, dealt), [rows for _, rows in _peers]
        theirs = [row for rows in peers for row in rows if row.what == "loader" and row.number == number]
        if not isinstance(dealt, DistributedSampler):
            return _by_indices(self, sampler, number, peers, theirs)
        if not theirs or dealt.num_replicas != 1 or theirs[0].batch != (self.batch_size or 0):
            return sampler  # it reads a larger batch already
        return Joined(sampler, dealt, theirs[0].replicas)

    def __iter__(self: DataLoader[Any]) -> Any:
        batches = iterated(self)
        if self._dataset_kind != _DatasetKind.Iterable or not self._auto_collation:
            return batches
        return Stream(batches, _noted(self, None), self.__dict__.setdefault(COUNT, [0]), _peers)

    DataLoader._index_sampler = property(index_sampler)
    DataLoader.__iter__ = __iter__


def _noted(loader: DataLoader[Any], dealt: Any) -> int:
    """The number of the loader, which is written down as it is first asked."""
    global _count
    number: int | None = loader.__dict__.get(NUMBER)
    if number is None:
        number = _count = _count + 1
        loader.__dict__[NUMBER] = number
        about = {"batch": loader.batch_size or 0, "replicas": getattr(dealt, "num_replicas", 1)}
        journal.write("loader", 0, name=type(dealt).__name__, number=number, rows=_size(loader), **about)
    return number


def _size(loader: DataLoader[Any]) -> int:
    try:
        return len(loader.dataset)
    except (TypeError, NotImplementedError):
        return 0


def _by_indices(
    loader: DataLoader[Any],
    sampler: Any,
    number: int,
    peers: Sequence[Sequence[Kept]],
    theirs: Sequence[Kept],
) -> Any:
    """Its own sampler, noted; alone, with what the ranks' own gave of a data set as large."""
    if loader._dataset_kind != _DatasetKind.Map:
        return sampler
    if KEPT in loader.__dict__:
        return loader.__dict__[KEPT]
    given = [[row.indices for row in rows if row.what == "dealt" and row.number == number] for rows in peers]
    if not peers:
        sampler = Noted(sampler, number)
    elif len(theirs) == len(peers) and all(row.rows == _size(loader) for row in theirs) and all(given):
        sampler = Given(sampler, given)
    loader.__dict__[KEPT] = sampler
    return sampler


class Noted:
    """A sampler of batches, or of indices one by one: what it gives is written down."""

    def __init__(self, sampler: Any, number: int) -> None:
        self._sampler, self._number = sampler, number
        self._count = 0

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._sampler:
            indices = batch if isinstance(batch, list) else list(batch) if isinstance(batch, tuple) else None
            if indices and self._count < MOST_BATCHES and all(isinstance(i, int) for i in indices):
                self._count += 1
                journal.write("dealt", 0, number=self._number, indices=indices)
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class Given:
    """The batches that the samplers of all ranks gave, joined, where they are not what the own one gives."""

    def __init__(self, sampler: Any, given: list[list[tuple[int, ...]]]) -> None:
        self._sampler, self._given = sampler, given
        self._count = 0  # over epochs, as the record has them

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._sampler:
            yield self._joined(batch)
            self._count += 1

    def _joined(self, batch: Any) -> Any:
        every = [given[self._count] for given in self._given if self._count < len(given)]
        apart = list(dict.fromkeys(every))  # ranks that are given the same count once
        joined = [index for indices in apart for index in indices]
        if len(every) < len(self._given) or len(apart) == 1 or Counter(joined) == Counter(batch):
            return batch
        if not self._count:
            journal.write("joined", 0)
        return joined

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


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
