"""A matrix of four ranks over two hosts, by hand and under Slurm: a cell that hangs is named with host and rank, and the next one runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.hosts import Hosts
from support.jobs import BIN
from support.slurm import Slurm

NSADIAG = BIN / "nsadiag"
TOKEN = "0123456789abcdef0123456789abcdef"
SPEC = """
name: two
command: train.py
world_size: 4
probes: light
stall_after_s: 3
timeout_s: 100
axes:
  what:
    values:
      first: {args: ok}
      hang: {args: hang}
      last: {args: ok}
"""
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist

def upload():
    while not os.path.exists("go-on"):
        time.sleep(0.5)

dist.init_process_group("gloo")
for step in range(5):
    if sys.argv[1] == "hang" and dist.get_rank() == 3 and step == 3:
        upload()
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "m.yaml").write_text(SPEC)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def check(out: Path, said: str) -> None:
    cells = json.loads((out / "matrix.json").read_text())["cells"]
    verdicts: dict[str, dict[str, Any]] = {cell["factors"]["what"]: cell["verdict"] for cell in cells}
    assert {what: verdict["class"] for what, verdict in verdicts.items()} == {
        "first": "healthy", "hang": "external_wait", "last": "healthy",
    }, said  # fmt: skip
    hung = verdicts["hang"]
    assert (hung["guilty_ranks"], hung["blocked_ranks"], hung["world_size"]) == ([3], [0, 1, 2], 4)
    assert hung["where"]["host"] == "node1" and hung["where"]["function"] == "upload"
    for what in verdicts:
        hosts = [
            json.loads((out / f"cells/what={what}/ranks/{rank:05d}/meta.json").read_text())["host"]
            for rank in range(4)
        ]
        assert hosts == ["node0", "node0", "node1", "node1"]


def test_the_same_command_on_both_hosts(hosts: Hosts, job: Path) -> None:
    started = [
        host.start(
            NSADIAG, "matrix", "m.yaml", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "node0", "--out", "out",
            cwd=job, env={"NSADIAG_RUN_TOKEN": TOKEN},
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    said = ["".join(one.communicate(timeout=150)) for one in started]
    assert [one.returncode for one in started] == [1, 1], said
    check(job / "out", "\n".join(said))
    assert hosts.left() == {}


@pytest.mark.slow
def test_a_job_on_two_nodes_for_each_cell(slurm: Slurm, job: Path) -> None:
    line = (NSADIAG, "matrix", "m.yaml", "--engine", "slurm", "--nodes", "2", "--slots", "1", "--out", "out")
    done = slurm.head.run(*line, cwd=job, seconds=280, check=False)
    logs = "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in (job / "out/slurm").glob("*.out"))
    assert done.returncode == 1, done.stdout + done.stderr + logs
    check(job / "out", done.stdout + logs)
    assert slurm.jobs() == []
