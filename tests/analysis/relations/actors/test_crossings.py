"""Jobs of several launchers: the verdict on recordings of real ones."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.recordings.role_record import CASES, GOLDEN, WRAPPED, misses

from nsadiag.analysis.verdict import judge_directory

RECORDED = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
# On torch 2.11 with a GPU, where gloo's threads have no name of their own.
BY_RUN = sorted([*WRAPPED.glob("*.tar.xz"), *(GOLDEN / "cuda").glob("*.tar.xz")])
# Trainer and engine on a GPU each (two H200, torch 2.11, NCCL 2.28), where a host waits by spinning, and a communicator
# is made in the first call without a word to who is not there.
NCCL = GOLDEN / "nccl"
OPEN = {
    "join_refused": "trainer rank 0 is at trainer.py:95 and waits in broadcast for members of its group that none of the others",
    "other_sizes": "engine is at common.py:46 and waits for its GPU",
}


@pytest.mark.parametrize(
    "archive",
    [
        *(GOLDEN / f"{n}.tar.xz" for n in RECORDED),
        *BY_RUN,
        NCCL / "slow_pack.tar.xz",
        NCCL / "update_refused.tar.xz",
    ],
    ids=lambda a: f"{a.parent.name}-{a.name[:-7]}",
)
def test_a_recorded_job_of_several_launchers_has_its_verdict(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert misses(archive.name.removesuffix(".tar.xz"), tmp_path) == []
    document = json.loads((tmp_path / "verdict.json").read_text())
    assert all((tmp_path / each["source"].partition("#")[0]).exists() for each in document["evidence"])


@pytest.mark.parametrize("name", sorted(OPEN))
def test_a_wait_that_nobody_can_look_into_is_named_and_called_neither_progress_nor_a_hang(
    name: str, tmp_path: Path
) -> None:
    with tarfile.open(NCCL / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    verdict = judge_directory(tmp_path)
    assert (verdict.outcome, verdict.guilty_ranks) == ("incomplete", ())
    assert OPEN[name] in verdict.summary


def test_faulty_and_healthy_ones_are_recorded() -> None:
    faulty = {name for name in RECORDED if CASES[name].classes}
    assert len(faulty) >= 8 and len(set(RECORDED) - faulty) >= 8
