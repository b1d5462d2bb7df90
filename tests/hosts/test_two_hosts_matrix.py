"""A matrix of four ranks over two hosts, by hand and under Slurm: a cell that hangs is named with host and rank, and the next one runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cluster.hosts import Hosts
from support.cluster.slurm import Slurm
from support.jobs import BIN, wait_until

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

LONG = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1000):
    dist.all_reduce(torch.ones(4))
    open(f"step-{dist.get_rank()}", "w").close()
    time.sleep(0.2)
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
    done = slurm.head.run(*line, cwd=job, check=False)
    logs = "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in (job / "out/slurm").glob("*.out"))
    assert done.returncode == 1, done.stdout + done.stderr + logs
    check(job / "out", done.stdout + logs)
    assert slurm.jobs() == []


@pytest.mark.slow
def test_a_node_lost_to_slurm_in_mid_cell_is_named_and_its_job_ended(slurm: Slurm, job: Path) -> None:
    (job / "train.py").write_text(LONG)
    line = (NSADIAG, "matrix", "m.yaml", "--engine", "slurm", "--nodes", "2", "-k", "first", "--out", "out")
    started = slurm.head.start(*line, cwd=job)
    wait_until(lambda: len(list(job.glob("step-*"))) == 4, "all ranks make steps")
    slurm.nodes[1].unplug()
    said = "".join(started.communicate(timeout=150))
    verdict = json.loads((job / "out/cells/what=first/verdict.json").read_text())
    assert (started.returncode, verdict["class"], verdict["guilty_ranks"]) == (1, "network_stall", [2, 3]), (
        said
    )
    assert "Host node1 stopped responding" in verdict["summary"]
    wait_until(lambda: not any("RUNNING" in one for one in slurm.jobs()), "its job does not run on")
    wait_until(
        lambda: not [p for p in slurm.nodes[0].processes().values() if "nsadiag" in p], "no orphan", 60
    )
    wait_until(
        lambda: not [p for p in slurm.nodes[1].processes().values() if "nsadiag" in p], "no orphan", 60
    )


@pytest.mark.slow
def test_a_matrix_whose_second_host_drops_off_ends_cleanly_and_is_taken_up(hosts: Hosts, job: Path) -> None:
    (job / "train.py").write_text(LONG)
    words = (
        NSADIAG,
        "matrix",
        "m.yaml",
        "-k",
        "first or last",
        "--nnodes",
        "2",
        "--master-addr",
        "node0",
        "--out",
        "out",
    )
    env = {"NSADIAG_RUN_TOKEN": TOKEN}
    started = [host.start(*words, "--node-rank", str(n), cwd=job, env=env) for n, host in enumerate(hosts)]
    wait_until(lambda: len(list(job.glob("step-*"))) == 4, "all ranks make steps")
    hosts[1].unplug()
    said = ["".join(one.communicate(timeout=150)) for one in started]
    assert [one.returncode for one in started] == [3, 3], said
    cells = json.loads((job / "out/matrix.json").read_text())["cells"]
    assert [cell["state"] for cell in cells] == ["done", "pending"] and "--resume" in said[0]
    assert cells[0]["verdict"]["class"] == "network_stall" and "Host node1" in cells[0]["verdict"]["summary"]
    assert hosts.left() == {}
    hosts[1].plug()
    (job / "train.py").write_text(SCRIPT)
    started = [
        host.start(*words, "--node-rank", str(n), "--resume", cwd=job, env=env)
        for n, host in enumerate(hosts)
    ]
    said = ["".join(one.communicate(timeout=150)) for one in started]
    cells = json.loads((job / "out/matrix.json").read_text())["cells"]
    # What the lost host cut short is run again.
    assert [cell["verdict"]["class"] for cell in cells] == ["healthy", "healthy"], said
