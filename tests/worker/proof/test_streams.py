"""Batches of a stream that two ranks were given, and the same stream alone, which yields both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.worker.proof.journal import journal
from nsadiag.worker.proof.streams import Peer, Stream

Batch = tuple[torch.Tensor, torch.Tensor]


def batch(*samples: int) -> Batch:
    return torch.tensor([[float(s), -float(s)] for s in samples]), torch.tensor(samples)


def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *given: Batch) -> list[Peer]:
    """One rank for each batch, which is its first; written as a rank's own stream writes it."""
    found: list[Peer] = []
    for number, first in enumerate(given):
        rank = RunDir(path=tmp_path).rank(number)
        make_private_dir(rank.path)
        rows: list[Kept] = []

        def write(what: str, step: int, leaf: torch.Tensor, *, into: list[Kept] = rows, data: Path = rank.proof_data, **about: Any) -> None:  # fmt: skip
            at = data.stat().st_size if data.exists() else 0
            stored = "f4" if leaf.is_floating_point() else "i8"
            with data.open("ab") as file:
                file.write(leaf.numpy().tobytes())
            into.append(
                Kept(what=what, step=step, local=tuple(leaf.shape), stored=stored, offset=at, **about)
            )

        monkeypatch.setattr(journal, "write", write)
        assert next(Stream(iter([first]), 1, [0], [])) == first
        found.append((rank, rows))
    monkeypatch.setattr(journal, "write", lambda *_, **__: None)
    return found


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (batch(0, 2), [batch(0, 2), batch(1, 3)], [0, 2, 1, 3]),  # a rank's part alone: both parts
        (batch(0, 1, 2, 3), [batch(0, 2), batch(1, 3)], [0, 1, 2, 3]),  # all of it already: as it is
        (batch(0, 2), [batch(0, 2), batch(0, 2)], [0, 2]),  # both were given the same
    ],
)
def test_alone_a_stream_yields_what_all_ranks_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Batch, given: list[Batch], expected: list[int]
) -> None:
    x, y = next(Stream(iter([own]), 1, [0], peers(tmp_path, monkeypatch, *given)))
    assert y.tolist() == expected and x[:, 0].tolist() == expected


def test_a_stream_goes_on_as_it_is_where_the_ranks_have_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = peers(tmp_path, monkeypatch, batch(0), batch(1))
    stream = Stream(iter([batch(0), batch(2)]), 1, [0], known)
    assert [y.tolist() for _, y in stream] == [[0, 1], [2]]
