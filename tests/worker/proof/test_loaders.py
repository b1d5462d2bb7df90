"""A loader's batches on two ranks, noted, and the same loader alone, which yields both."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.proof import loaders
from nsadiag.worker.proof.journal import journal

EPOCHS = [[[0, 1], [4, 5]], [[0, 1], [4, 5]]], [[[2, 3], [6, 7]], [[2, 3], [6, 7]]]  # of either rank


class Dealer:
    """Every other pair of numbers, from one place on."""

    def __init__(self, first: int, by: int = 4, size: int = 2) -> None:
        self._starts, self._size = range(first, 8, by), size

    def __iter__(self) -> Any:
        return iter([list(range(start, start + self._size)) for start in self._starts])

    def __len__(self) -> int:
        return len(self._starts)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(journal, "write", lambda what, step, **about: rows.append({"what": what, **about}))  # fmt: skip
    return rows


def read(sampler: Any) -> list[Any]:
    return [list(sampler) for _ in range(2)]


def test_what_each_rank_is_dealt_is_noted_over_epochs(written: list[dict[str, Any]]) -> None:
    loader: DataLoader[int] = DataLoader(range(8), batch_sampler=Dealer(2))
    noted = [loaders._by_indices(loader, loader.batch_sampler, 1, [], []) for _ in range(2)]
    assert noted[0] is noted[1] and read(noted[0]) == EPOCHS[1] and len(noted[0]) == 2
    assert [row["indices"] for row in written] == [[2, 3], [6, 7]] * 2


@pytest.mark.parametrize(
    ("own", "rows", "expected"),
    [
        (Dealer(0), 8, [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2),  # its own part alone: all parts
        (Dealer(0, size=4), 8, [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2),  # all of them already: as they are
        (Dealer(0), 4, EPOCHS[0]),  # the ranks' data set is a part of this one: numbers mean other samples
    ],
)
def test_alone_it_yields_what_all_ranks_were_dealt(
    written: list[dict[str, Any]], own: Any, rows: int, expected: list[Any]
) -> None:
    loader: DataLoader[int] = DataLoader(range(8), batch_sampler=own)
    peers = [[Kept(what="dealt", number=1, indices=tuple(batch)) for epoch in rank for batch in epoch] for rank in EPOCHS]  # fmt: skip
    theirs = [Kept(what="loader", number=1, rows=rows)] * 2
    assert read(loaders._by_indices(loader, own, 1, peers, theirs)) == expected
