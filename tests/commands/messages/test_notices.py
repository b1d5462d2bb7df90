"""A backend that gives up a collective says so on stderr: our line follows it, on each node that prints it."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest
from support.jobs import Jobs

from nsadiag.cluster.place import free_port
from nsadiag.commands.messages.notices import TIMEOUT

TIMEOUT_S = 20  # of the backend: by then, a hang is suspected
LIMITS = ("--patience", "300")  # nothing that is only suspected is stopped before
JOB = f"""
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds={TIMEOUT_S}))
for step in range(6):
    if step == 4 and dist.get_rank() == 1:
        until = time.monotonic() + {TIMEOUT_S + 10}  # another node's launcher does not end this one
        while time.monotonic() < until and not os.path.exists("marker"):  # that nobody writes
            time.sleep(0.2)
    dist.all_reduce(torch.ones(4))
"""


def remarks(err: str) -> list[str]:
    """Our lines after the first of the backend's or torchrun's on a timeout."""
    lines = err.splitlines()
    reported = [number for number, line in enumerate(lines) if TIMEOUT.search(line.encode())]
    after = lines[reported[0] :] if reported else []
    return [line for line in after if line.endswith("The verdict follows when the job has ended.")]


@pytest.mark.slow
def test_a_timeout_on_one_node_is_followed_by_what_was_suspected(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB)
    done = jobs.run(
        "run", *LIMITS, "--out", "run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", "job.py"
    )
    (said,) = remarks(done.stderr)
    suspicions = json.loads((jobs.directory / "run/watch.json").read_text())["suspicions"]
    expected = f"suspected before this: {suspicions[-1]['says']} " if suspicions else ""
    assert said == f"nsadiag: {expected}The verdict follows when the job has ended."
    assert done.returncode == 1


@pytest.mark.slow
def test_a_timeout_on_two_nodes_is_followed_by_our_line_on_each_that_prints_it(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB)
    port = free_port(socket.AF_INET, "127.0.0.1")

    def start(rank: int) -> subprocess.Popen[str]:
        at = f"--nnodes 2 --node-rank {rank} --master-addr 127.0.0.1 --master-port {port}".split()
        line = ("torchrun", "--nproc-per-node", "1", "job.py")
        environment = {"NSADIAG_RUN_TOKEN": "the token of these tests"}
        return jobs.start("run", *LIMITS, "--out", f"run{rank}", *at, "--", *line, env=environment)

    errs = [agent.communicate(timeout=240)[1] for agent in [start(0), start(1)]]
    assert jobs.left() == {}
    assert TIMEOUT.search(errs[0].encode()), errs[0]
    for err in errs:
        assert len(remarks(err)) == bool(TIMEOUT.search(err.encode())), err
