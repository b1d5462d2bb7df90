"""`nsadiag top` beside a real job that runs, and gets stuck."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.processes.forking import FORKING

JOB = """
import os, threading, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(5):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 1:
    open(os.environ["SIGNALS"], "w").write("stuck\\n")
    threading.Event().wait()
dist.barrier()  # rank 0 waits here
"""


def top(jobs: Jobs, *arguments: str) -> str:
    """What it prints; the job that it looks at may run meanwhile."""
    started = jobs.start("top", *arguments)
    stdout, stderr = started.communicate(timeout=GIVE_UP_S)
    assert started.returncode == 0, stderr
    return stdout


def rows(jobs: Jobs) -> dict[int, dict[str, Any]]:
    found = json.loads(top(jobs, "--json", "run"))
    return {row["rank"]: row for run in found["runs"] for row in run["ranks"]}


def test_every_ranks_step_phase_and_line_while_the_job_is_stuck(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB)
    job = jobs.start("run", "--out", "run", "--stall-after", "600", "--", *FORKING, "2", "job.py")
    jobs.signals.wait()
    wait_until(lambda: "barrier" in rows(jobs)[0]["phase"], "rank 0 in its barrier")
    found = rows(jobs)
    assert [found[r]["step"] for r in (0, 1)] == [5, 5]
    assert (found[0]["phase"], found[0]["place"]) == ("barrier", "job.py:13")
    assert found[1]["phase"] == "between" and not found[1]["ended"]
    assert all(row["rate_per_s"] >= 0 and row["quiet_s"] >= 0 for row in found.values())

    shown = top(jobs, "--once", "run")
    assert "barrier" in shown and "job.py:13" in shown

    job.send_signal(signal.SIGINT)
    jobs.finish(job)
    # Over: it shows where they were, and does not wait for more.
    assert "ended" in top(jobs, "run")
    assert all(row["ended"] for row in rows(jobs).values())


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_what_is_no_run_is_refused_in_one_line(jobs: Jobs, path: str) -> None:
    done = jobs.run("top", path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "hint: " in done.stderr


def test_a_matrix_that_runs_nothing_shows_nothing(jobs: Jobs) -> None:
    (jobs.directory / "matrix" / "cells").mkdir(parents=True)
    done = jobs.run("top", "--once", "matrix")
    assert (done.returncode, "nothing runs there" in done.stdout) == (0, True)
