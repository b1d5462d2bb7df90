"""`with nsadiag.watch(model):` under a plain launcher: recorded, looked on from beside, judged, and left as it was."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.processes.forking import FORKING
from support.processes.warm_python import WarmPython

import nsadiag
from nsadiag.evidence.layout import RunDir
from nsadiag.worker.watched import Watched

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
JOB = """
import hashlib, os, sys, threading, time
import torch
import torch.distributed as dist
import nsadiag

started_with = dict(os.environ)
dist_rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

def train(model, optimizer, what):
    for step in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step == 4 and what == "hang" and dist_rank == 1:
            threading.Event().wait()
        if step == 4 and what == "sleep" and dist_rank == 1:
            time.sleep(3600)
        if step == 4 and what == "raise":
            raise ValueError("a bad batch")

def watched(what):
    with nsadiag.watch(model, out="run", on_hang=os.environ.get("ON_HANG", "leave")):
        os.write(1, f"entered {time.monotonic_ns()}\\n".encode())
        group(what)

def group(what):
    ddp = model
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        ddp = torch.nn.parallel.DistributedDataParallel(model)
    train(ddp, torch.optim.Adam(ddp.parameters(), 1e-3), what)

(group if sys.argv[1] == "unwatched" else watched)(sys.argv[1])
call = torch.nn.Module.__call__
assert "NSADIAG_RUN_ID" in started_with or "nsadiag" not in call.__code__.co_filename and not any(
    p._post_accumulate_grad_hooks for p in model.parameters())
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
os.write(1, f"digest {dist_rank} {digest}\\n".encode())  # whole: two ranks share the descriptor
if dist.is_initialized():
    dist.destroy_process_group()
"""


@pytest.fixture
def job(jobs: Jobs) -> Any:
    (jobs.directory / "job.py").write_text(JOB)

    def start(*command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=jobs.directory,
            env=jobs.environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finished(started: subprocess.Popen[str]) -> str:
    # The looker-on holds the pipe as well, so this is the end of both.
    return started.communicate(timeout=GIVE_UP_S)[0]


def verdict(directory: Path) -> dict[str, Any]:
    path = directory / "run/verdict.json"
    wait_until(path.exists, "a verdict")
    return json.loads(path.read_text())


def digests(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("digest"))


def unwatched(jobs: Jobs, warm_python: WarmPython, launcher: tuple[str, ...]) -> str:
    """What the same job prints without the block; ranks need no launcher for that."""
    script, environment = jobs.directory / "job.py", jobs.environment()
    if launcher == TORCHRUN:
        started = warm_python.start_ranks(2, script, "unwatched", cwd=jobs.directory, env=environment)
    else:
        started = [warm_python.start(script, "unwatched", cwd=jobs.directory, env=environment)]
    printed = "".join(process.communicate(timeout=GIVE_UP_S)[0] for process in started)
    for process in started:
        process.close()
    return printed


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, pytest.param(("python",), marks=pytest.mark.slow)], ids=["torchrun", "python"]
)
def test_a_watched_block_ends_healthy_and_leaves_nothing_behind(
    jobs: Jobs, job: Any, warm_python: WarmPython, launcher: tuple[str, ...]
) -> None:
    plain = unwatched(jobs, warm_python, launcher)
    watched = finished(job(*launcher, "job.py", "watched"))
    assert digests(watched) == digests(plain) != []
    assert "nsadiag: healthy" in watched
    found = verdict(jobs.directory)
    assert (found["class"], found["progress"]["steps_done"]) == ("healthy", 8)
    entered = max(int(line.split()[1]) for line in watched.splitlines() if line.startswith("entered"))
    began = json.loads((jobs.directory / "run/watch.json").read_text())["started_mono_ns"]
    assert began < entered, "times count from the block, and not from when somebody looks on"
    wait_until(lambda: not jobs.left(), "the looker-on gone")


def test_an_exception_in_the_block_is_recorded_and_raised(jobs: Jobs, job: Any) -> None:
    assert "ValueError: a bad batch" in finished(job("python", "job.py", "raise"))
    found = verdict(jobs.directory)
    assert (found["class"], found["where"]["code"]) == ("rank_exception", 'raise ValueError("a bad batch")')


def test_a_hang_is_reported_and_left_as_it_is(jobs: Jobs, job: Any) -> None:
    started = job(*FORKING, "2", "job.py", "hang")
    found = verdict(jobs.directory)
    assert (found["class"], found["guilty_ranks"]) == ("local_lock_deadlock", [1])
    assert found["where"]["code"] == "threading.Event().wait()"
    wait_until((jobs.directory / "run/report.html").exists, "the report")
    assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    finished(started)


def test_a_suspected_hang_that_somebody_interrupts_is_one(jobs: Jobs, job: Any) -> None:
    """torchrun hands Ctrl-C on to the ranks: they move once more, by their KeyboardInterrupt, and that withdraws nothing."""
    started = job(*TORCHRUN, "job.py", "sleep", env={"NSADIAG_PATIENCE": "600"})
    said = []
    for line in started.stdout:
        said.append(line)
        if "suspected hang" in line:
            break
    started.send_signal(signal.SIGINT)
    output = "".join(said) + finished(started)
    assert "no hang" not in output
    found = verdict(jobs.directory)
    assert (found["outcome"], found["class"], found["guilty_ranks"]) == ("hung", "missing_rank", [1])


def test_a_watch_that_nobody_enters_says_so() -> None:
    with pytest.warns(RuntimeWarning, match="around the training") as seen:
        nsadiag.watch()
    assert seen[0].filename == __file__


@pytest.mark.slow
def test_a_hang_is_ended_if_that_was_asked_for(jobs: Jobs, job: Any) -> None:
    output = finished(job(*TORCHRUN, "job.py", "hang", env={"ON_HANG": "stop"}))
    assert "nsadiag: hung" in output
    assert verdict(jobs.directory)["class"] == "local_lock_deadlock"
    wait_until(lambda: not jobs.left(), "all of them gone")


def test_under_nsadiag_run_the_block_is_part_of_that_run(jobs: Jobs, job: Any) -> None:
    done = jobs.run("run", "--out", "outer", "--", "python", "job.py", "watched")
    assert done.returncode == 0, done.stderr
    judged = json.loads((jobs.directory / "outer/verdict.json").read_text())
    assert judged["class"] == "healthy", (judged, (jobs.directory / "outer/ends.json").read_text())
    assert not (jobs.directory / "run").exists()


def sockets_of(run: Path) -> Path:
    from nsadiag.worker.inline import _sockets

    return _sockets(RunDir(path=run))


def test_ranks_of_a_node_agree_on_a_socket_directory_that_nobody_can_foretell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with multiprocessing.get_context("fork").Pool(8) as ranks:
        found = set(ranks.map(sockets_of, [tmp_path / "run"] * 64))
    (sockets,) = found
    assert (sockets.stat().st_mode & 0o777, sockets.stat().st_uid) == (0o700, os.geteuid())
    assert str(os.getpid()) not in sockets.name
    assert list(tmp_path.glob("nsadiag-*")) == [sockets], "what the others had made is gone"


ASKS = """
import nsadiag, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with nsadiag.watch(model) as run:
    assert run.verdict is None
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
print("came to", run.verdict.outcome, "in", run, flush=True)
print(repr(nsadiag.load(run)))
"""


def test_the_block_gives_the_verdict_and_a_directory_like_that_of_other_runs(job: Any, jobs: Jobs) -> None:
    (jobs.directory / "asks.py").write_text(ASKS)
    said = finished(job(sys.executable, "asks.py"))
    found = re.search(r"came to healthy in .*/artifacts/(\d{8}-\d{6}-asks-\S+)", said)
    assert found, said
    assert "<nsadiag.Run" in said and "healthy" in said.rpartition("<nsadiag.Run")[2]
    artifacts = jobs.directory / "artifacts"
    assert (artifacts / "latest").resolve().name == found[1]
    assert (artifacts / ".gitignore").exists()


AGAIN = """
import torch, nsadiag
model = torch.nn.Linear(4, 1)
for _ in range(4):
    with nsadiag.watch(model) as run:
        model(torch.randn(2, 4)).sum().backward()
    print(run.verdict.outcome, *run.glob("ranks/*/gaps*"))
"""


def test_a_process_may_watch_time_and_again(job: Any, jobs: Jobs) -> None:
    (jobs.directory / "again.py").write_text(AGAIN)
    said = finished(job(sys.executable, "again.py"))
    assert said.count("healthy\n") >= 4 and "gaps" not in said and "WorkerServer" not in said, said


def test_a_directory_below_that_of_a_watch_waits_for_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.verdict is None and (watched / "ranks").name == "ranks"
