"""Two hosts, and a job that is only slow: nobody may call it hung because one side of it waits."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.cluster.hosts import DISK, Hosts
from support.jobs import BIN, wait_until

pytestmark = pytest.mark.slow
JOB = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, what = dist.get_rank(), sys.argv[1]
for step in range(100 if what == "steps" else 5):
    if what == "compute" and rank == 3 and step == 3:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            sum(i * i for i in range(100_000))
    dist.all_reduce(torch.ones(4))
    if what == "steps":
        open(f"step-{rank}", "w").write(str(step))
        time.sleep(0.2)
dist.destroy_process_group()
"""


def run(hosts: Hosts, what: str) -> list[Any]:
    """The agents of both."""
    for host in hosts:
        host.path(DISK / "job.py").write_text(JOB)
    return [
        host.start(
            BIN / "nsadiag", "run", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "node0", "--out", "out",
            "--", "torchrun", "--nproc-per-node", "2", "job.py", what,
            cwd=DISK, env={"NSADIAG_RUN_TOKEN": "the token of these tests", "GLOO_SOCKET_IFNAME": "eth0"},
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip


def outcome(hosts: Hosts, agents: list[Any]) -> tuple[list[int], str, list[str]]:
    """Exit codes, the verdict's class, and what looks came to."""
    said = [agent.communicate(timeout=150) for agent in agents]
    print(said)
    assert hosts.left() == {}
    out: Path = hosts[0].path(DISK / "out")
    looks = [look["judgement"] for look in json.loads((out / "watch.json").read_text())["looks"]]
    return (
        [agent.returncode for agent in agents],
        json.loads((out / "verdict.json").read_text())["class"],
        looks,
    )


def test_a_host_that_waits_for_one_that_computes_is_not_hung(hosts: Hosts) -> None:
    codes, found, looks = outcome(hosts, run(hosts, "compute"))
    assert (codes, found) == ([0, 0], "healthy")
    assert "still" not in looks


def test_a_cable_that_is_pulled_for_some_seconds_costs_nothing(hosts: Hosts) -> None:
    agents = run(hosts, "steps")
    step = hosts[1].path(DISK / "step-3")
    wait_until(lambda: step.exists() and step.read_text() not in ("", "0"), "steps")
    hosts[1].unplug()
    time.sleep(4)  # the fault itself
    hosts[1].plug()
    assert outcome(hosts, agents)[:2] == ([0, 0], "healthy")
