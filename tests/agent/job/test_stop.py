"""`--on-hang stop`: whatever a job is made of, it is ended after its evidence was taken, and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs
from support.processes.forking import FORKING

from nsadiag.agent import processes
from nsadiag.agent.job.stop import DUMP_QUIET_S, wait_for_dumps
from nsadiag.evidence.layout import RunDir

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
STUCK = """
import os, signal, sys, threading
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, n):
        return torch.tensor(n)

def deaf(_=0):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def main():
    ways = sys.argv[1:]
    rank = int(os.environ["RANK"])
    if "deaf" in ways:
        deaf()
    dist.init_process_group("gloo")
    if "workers" in ways:
        batches = iter(DataLoader(Batches(), num_workers=2, worker_init_fn=deaf))
        next(batches)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        with open(os.environ["SIGNALS"], "w") as pipe:
            pipe.write("reached\\n")
        threading.Event().wait()
    dist.barrier()

main()
"""
# A rank whose parents have gone: init's child, in a session of its own.
DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.update(RANK="0", WORLD_SIZE="1")
        os.execv(sys.executable, [sys.executable, "-c", "import torch, threading; threading.Event().wait()"])
    os._exit(0)
os.wait()
while True:
    time.sleep(1)
"""


@pytest.fixture
def job(jobs: Jobs) -> Path:
    script = jobs.directory / "job.py"
    script.write_text(STUCK)
    return script


def stopped(jobs: Jobs, *command: str) -> dict[str, Any]:
    """watch.json of a job that was found stuck and ended; that nothing is left is checked by `finish`."""
    options = ("run", "--out", "run", "--stall-after", "1", "--")
    done = jobs.finish(jobs.start(*options, *command))
    watch = json.loads((jobs.directory / "run/watch.json").read_text())
    assert (watch["stopped"], watch["left_alive"]) == ("hang", []), done.stderr
    return watch


def verdict(jobs: Jobs) -> dict[str, Any]:
    return json.loads((jobs.directory / "run/verdict.json").read_text())


def ends(jobs: Jobs) -> dict[str, Any]:
    return json.loads((jobs.directory / "run/ends.json").read_text())


def test_ranks_that_ignore_sigterm_are_killed(jobs: Jobs, job: Path) -> None:
    stopped(jobs, *FORKING, "2", "job.py", "deaf")
    assert {end["signal"] for end in ends(jobs).values()} == {signal.SIGKILL}
    assert all(end["by_us"] for end in ends(jobs).values())
    # The answer comes before the job is ended: that may take its time.
    assert verdict(jobs)["times"]["verdict_s"] < min(end["t_s"] for end in ends(jobs).values())
    assert (verdict(jobs)["class"], verdict(jobs)["guilty_ranks"]) == ("local_lock_deadlock", [0])


@pytest.mark.slow
def test_loader_workers_that_ignore_sigterm_are_ended_after_their_ranks(jobs: Jobs, job: Path) -> None:
    stopped(jobs, *TORCHRUN, "job.py", "workers")
    assert {end["signal"] for end in ends(jobs).values()} == {signal.SIGTERM}
    # A rank that saw its workers die first would have raised an error that was never the job's.
    assert not list((jobs.directory / "run").glob("ranks/*/exception.json"))


@pytest.mark.slow
def test_a_launcher_that_would_start_its_ranks_anew_does_not(jobs: Jobs, job: Path) -> None:
    stopped(jobs, *TORCHRUN, "--max-restarts", "5", "job.py")
    assert not list((jobs.directory / "run").glob("ranks/*/attempts"))
    assert verdict(jobs)["class"] == "local_lock_deadlock"


@pytest.mark.slow
def test_a_shell_that_starts_the_job_again_and_again_does_not(jobs: Jobs, job: Path) -> None:
    stopped(jobs, "sh", "-c", f"while true; do {' '.join(TORCHRUN)} job.py; done")
    assert not list((jobs.directory / "run").glob("ranks/*/attempts"))


@pytest.mark.slow
def test_a_rank_that_nobody_is_the_parent_of_is_ended_too(jobs: Jobs, job: Path) -> None:
    (jobs.directory / "daemon.py").write_text(DAEMON)
    stopped(jobs, "python", "daemon.py")
    assert len(ends(jobs)) == 1 and ends(jobs)["0"]["by_us"]


@pytest.mark.slow
def test_a_stopped_rank_is_ended(jobs: Jobs, job: Path) -> None:
    started = jobs.start("run", "--out", "run", "--stall-after", "1", "--", *TORCHRUN, "job.py")
    assert jobs.signals.wait() == "reached"
    os.kill(json.loads((jobs.directory / "run/ranks/00000/meta.json").read_text())["pid"], signal.SIGSTOP)
    jobs.finish(started)
    assert verdict(jobs)["outcome"] == "hung"
    look = json.loads((jobs.directory / "run/watch.json").read_text())["looks"][-1]
    assert "rank 0 is stopped by a signal" in look["reason"]


def test_a_dump_that_grows_is_waited_for_and_one_of_yesterday_is_not(jobs: Jobs) -> None:
    run = RunDir(path=jobs.directory / "run")
    dump = jobs.directory / "dump_0"
    script = """
import os, time
with open("dump_0", "wb", buffering=0) as file:
    for n in range(8):
        file.write(b"evidence")
        if n == 0:
            open(os.environ["SIGNALS"], "w").write("dumping\\n")
        time.sleep(0.3)
time.sleep(600)
"""
    environment = jobs.environment({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{jobs.directory}/dump_"})
    rank = subprocess.Popen([sys.executable, "-c", script], cwd=jobs.directory, env=environment)
    jobs.signals.wait()
    process = processes.identify(rank.pid)
    assert process is not None
    wait_for_dumps(run, [process])
    assert dump.stat().st_size == 8 * len(b"evidence")
    started = time.monotonic()
    os.utime(dump, (0, 0))
    wait_for_dumps(run, [process])
    assert time.monotonic() - started < DUMP_QUIET_S
    jobs.close_left()
    rank.wait()


@pytest.mark.slow
def test_nobody_else_is_ended(jobs: Jobs, job: Path) -> None:
    """A process of the user's that only looks alike: same command, no mark of the run."""
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = jobs.start("run", "--out", "run", "--stall-after", "1", "--", *TORCHRUN, "job.py")
    jobs.finish(started)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
