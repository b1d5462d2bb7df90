"""The same batches on all ranks of a data-parallel job: told only where a loader draws for itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.events import events
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.correctness.duplicate_inputs import same_batches
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.worker.probes.data.data import _sampler_of


def case(
    cell: CellEvidence, label: str = "default_pg\t/home/u/train.py:9:main", name: str = "all_reduce"
) -> Any:
    return SimpleNamespace(
        cell=cell,
        events=events([{"kind": Kind.COLLECTIVE, "label": label, "name": name}]),
    )


def cell(path: Path, sums: dict[int, list[float]], sampler: str | None = "RandomSampler") -> CellEvidence:
    """By rank: the sum over what its model was given at steps 0, 1, 2, 4, ..."""
    run = RunDir(path=path)
    for rank, totals in sums.items():
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": len(sums), "pid": 100 + rank})
        write_json(directory.ddp, [{"ranks": list(sums), "parameters": []}])
        write_json(directory.loaders, [{"sampler": sampler, "place": "/home/u/train.py:7:main"}])
        for n, total in enumerate(totals):
            row = {"step": 2**n // 2, "tensors": [[[8, 4], total, 9.0]]}
            append_json_line(directory.given, row)
    return load_cell(path)


SAME = [1.0, 2.0, 3.0, 4.0, 5.0]


def test_batches_that_are_equal_on_all_ranks_at_every_look_are_told(tmp_path: Path) -> None:
    found = same_batches(case(cell(tmp_path, {0: SAME, 1: SAME})))
    assert found and "at each of 5 snapshots" in found.sentence and "DistributedSampler" in found.fix
    assert "/home/u/train.py:7" in list(found.evidence)[1]


@pytest.mark.parametrize(
    ("other", "sampler"),
    [
        ([*SAME[:-1], 9.0], "RandomSampler"),  # one look of five at which they are not
        (SAME, "DistributedSampler"),
        (SAME, None),  # the dataset itself says what comes
    ],
)
def test_batches_that_may_well_be_each_ranks_own_are_not_told(
    other: list[float], sampler: str | None, tmp_path: Path
) -> None:
    assert same_batches(case(cell(tmp_path, {0: SAME, 1: other}, sampler))) is None


def test_one_batch_over_and_over_is_an_experiment(tmp_path: Path) -> None:
    assert same_batches(case(cell(tmp_path, {r: [1.0] * 6 for r in (0, 1)}))) is None


def test_ranks_that_divide_one_batch_among_themselves_are_given_the_same(tmp_path: Path) -> None:
    both = cell(tmp_path, {0: SAME, 1: SAME})
    assert same_batches(case(both, label="mesh_sp\t/home/u/train.py:9:main")) is None
    assert same_batches(case(both, name="all_to_all_single")) is None


class Some(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


def test_a_loader_says_what_draws_its_batches() -> None:
    shared = DistributedSampler(Some(), num_replicas=2, rank=0)
    loaders: dict[str | None, DataLoader[int]] = {
        "RandomSampler": DataLoader(Some(), 2, shuffle=True),
        "SequentialSampler": DataLoader(Some()),
        "DistributedSampler": DataLoader(Some(), batch_sampler=BatchSampler(shared, 2, False)),
        None: DataLoader(Stream(), 2),
    }
    assert [_sampler_of(iter(loader)) for loader in loaders.values()] == list(loaders)
