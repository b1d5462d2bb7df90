"""A worker that is never told to stop: the line that told the others, and what left it out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.recorded_paths import walks

from nsadiag.analysis.paths.untold import untold
from nsadiag.source.model import SourceModel

# Rank 0 deals, and the others compute until they are told to stop. What is told is written down for all before they run.
JOB = """
import os

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
given = {GIVEN}


def deal():
    for worker in range(1, size):
        for _ in range(given[worker]):
            call("send", peer=worker)
            call("recv", peer=worker)
{STOP}


def work():
    left = given[rank]
    while True:
        call("recv", peer=0)
        if left == 0:
            {END}
        left -= 1
        call("send", peer=0)


deal() if rank == 0 else work()
call("barrier")
"""
FEWER = "    for worker in range(1, size - 1):\n        call('send', peer=worker)"
BUSY = "    for worker in range(1, size):\n        if given[worker]:\n            call('send', peer=worker)"
ALL = "    for worker in range(1, size):\n        call('send', peer=worker)"
STUCK = "os._exit(0) if rank == size - 1 else None; return"


@pytest.mark.parametrize(
    ("stop", "given", "code"),
    [
        (FEWER, {1: 2, 2: 1, 3: 1}, "for worker in range(1, size - 1):"),
        (BUSY, {1: 2, 2: 1, 3: 0}, "if given[worker]:"),
    ],
)
def test_the_condition_that_left_the_worker_out_is_the_cause(
    tmp_path: Path, stop: str, given: dict[int, int], code: str
) -> None:
    found = told(tmp_path, stop, given, STUCK)
    assert found is not None
    script = tmp_path / "train.py"
    assert script.read_text().splitlines()[found.line - 1].strip() == code
    assert found.chain[0].because == "rank 0 sent here to ranks 1, 2 what let them go on, and never to rank 3"
    assert found.how == "recorded"


def test_a_worker_that_was_told_accuses_nobody(tmp_path: Path) -> None:
    assert told(tmp_path, ALL, {1: 2, 2: 1, 3: 1}, STUCK) is None


def test_a_worker_that_waits_like_all_others_accuses_nobody(tmp_path: Path) -> None:
    assert told(tmp_path, "", {1: 2, 2: 1, 3: 1}, "os._exit(0)") is None


def told(folder: Path, stop: str, given: dict[int, int], end: str):  # type: ignore[no-untyped-def]
    source = JOB.replace("{GIVEN}", repr(given)).replace("{STOP}", stop).replace("{END}", end)
    recorded = {walk.rank: walk for walk in walks(folder, source, size=4)}
    file = str(folder / "train.py")
    return untold(SourceModel({file: source}), recorded, 3)
