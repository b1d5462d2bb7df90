"""Processes that train before they say which rank they are."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.reader import read_blackbox
from nsadiag.worker import numbering

# Without RANK in the environment: the parent starts both, each trains alone, and then they meet.
WARM_UP = """
import glob, os, subprocess, sys, time
import torch, torch.distributed as dist

def exists(name):
    return glob.glob(os.path.join(os.environ["NSADIAG_RUN_DIR"], "ranks", name))

def train(steps):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

def main(rank):
    if rank == 0:
        while not exists("00000/meta.json"):
            time.sleep(0.01)
    train(3 + rank)
    if rank == 1:
        while WAITS and not exists("guess-*"):
            time.sleep(0.01)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=2)
    train(10)
    dist.barrier()
    dist.destroy_process_group()

if len(sys.argv) > 1:
    main(int(sys.argv[1]))
else:
    both = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in (0, 1)]
    sys.exit(max(each.wait() for each in both))
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def verdict_of(jobs: Jobs, source: str, *options: str) -> dict[str, Any]:
    (jobs.directory / "train.py").write_text(source)
    done = jobs.run("run", "--out", "run", *options, "--", "python", "train.py")
    path = jobs.directory / "run/verdict.json"
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


def steps_of(rank: Path) -> tuple[int, int]:
    """Of the header, and of the ring: which rank, and how many steps."""
    recording = read_blackbox(rank / "blackbox.bin")
    assert recording.header is not None
    return recording.header.rank, int(recording.events["step"].max())


@pytest.mark.slow
def test_a_rank_that_was_taken_for_another_keeps_what_it_recorded(jobs: Jobs, free_port: int) -> None:
    source = WARM_UP.replace("WAITS", "True").replace("{PORT}", str(free_port))
    verdict = verdict_of(jobs, source)
    assert (verdict["class"], verdict["world_size"]) == ("healthy", 2), verdict["summary"]
    ranks = sorted(path.name for path in (jobs.directory / "run/ranks").iterdir())
    assert ranks == ["00000", "00001"]
    # Rank 0 was refused its number while it trained alone: rank 1 had it.
    assert steps_of(jobs.directory / "run/ranks/00000") == (0, 10)
    assert steps_of(jobs.directory / "run/ranks/00001") == (1, 14)


@pytest.mark.slow
def test_ranks_that_trained_before_they_met_are_told_by_their_addresses(jobs: Jobs, free_port: int) -> None:
    source = WARM_UP.replace("WAITS", "False").replace("{PORT}", f"{{{free_port} + rank}}")
    verdict = verdict_of(jobs, source, "--stall-after", "2")
    assert (verdict["outcome"], verdict["class"]) == ("hung", "rendezvous_mismatch"), verdict["summary"]
    assert verdict["guilty_ranks"] == [1]
    for rank in (0, 1):
        assert f"rank {rank}: tcp://127.0.0.1:{free_port + rank}" in verdict["summary"]


LATE = """
import glob, os, subprocess, sys, time
import torch.distributed as dist

def main(rank):
    looks = os.path.join(os.environ["NSADIAG_RUN_DIR"], "ranks", "00000", "captures", "*")
    while rank == 1 and len(glob.glob(looks)) < LOOKS:
        time.sleep(0.01)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:PORT", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()

if len(sys.argv) > 1:
    main(int(sys.argv[1]))
else:
    both = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in (0, 1)]
    sys.exit(max(each.wait() for each in both))
"""


@pytest.mark.slow
def test_a_process_that_may_be_the_missing_rank_is_waited_for(jobs: Jobs, free_port: int) -> None:
    """It loads its data first, say; nobody knows its number before it joins the group."""
    source = LATE.replace("PORT", str(free_port)).replace("LOOKS", "3")
    verdict = verdict_of(jobs, source, "--stall-after", "1")
    assert (verdict["class"], verdict["world_size"]) == ("healthy", 2), verdict["summary"]


@pytest.mark.parametrize(
    ("first", "then", "belongs"),
    [
        ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "a", "MASTER_PORT": "2"}, True),
        ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "b"}, False),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "1"}, {"MASTER_PORT": "1"}, True),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1"}, {"MASTER_ADDR": "h", "MASTER_PORT": "2"}, False),
        ({"MASTER_PORT": "1"}, {}, False),
        ({}, {"MASTER_PORT": "1"}, True),
    ],
)
def test_of_two_launchers_at_a_time_the_ranks_of_the_first_are_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, str],
    then: dict[str, str],
    belongs: bool,
) -> None:
    run = RunDir(path=tmp_path)

    def asked(environment: dict[str, str]) -> bool:
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return numbering.belongs(run)

    assert asked(first)
    assert asked(then) is belongs
    # Another one begins once the first has ended.
    for path in tmp_path.glob("nodes/*/launcher.json"):
        ended = subprocess.Popen(["true"])
        ended.wait()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": ended.pid}))
    assert asked(then)
