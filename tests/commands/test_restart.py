"""`nsadiag run --restart-on retry=N`: another attempt where the verdict says `retry`, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from support.jobs import Jobs
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import read_json, write_json

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
# Rank 1 is ended from outside, as by a node that is drained, in as many attempts as the argument says.
DRAINED = """
    import os, signal, sys
    from pathlib import Path
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    attempts = Path("attempts")
    if dist.get_rank() == 1:
        number = len(attempts.read_text()) if attempts.exists() else 0
        attempts.write_text("x" * (number + 1))
        if number < int(sys.argv[1]):
            os.system(f"kill -TERM {os.getpid()}")
            signal.pause()
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
"""
RAISES = """
    from pathlib import Path
    import torch.distributed as dist

    dist.init_process_group("gloo")
    Path("attempts").write_text(Path("attempts").read_text() + "x" if Path("attempts").exists() else "x")
    raise ValueError("the configuration has no such key")
"""


def script(jobs: Jobs, source: str) -> str:
    (jobs.directory / "train.py").write_text(dedent(source))
    return "train.py"


def document(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_job_that_a_signal_from_outside_ended_is_started_again(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--restart-on", "retry=3", "--", *TORCHRUN)
    done = jobs.run(*line, script(jobs, DRAINED), "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1 of at most 4, in run: " in done.stderr
    assert "Starting the job again." in done.stderr
    first, second = jobs.directory / "run", jobs.directory / "run.attempt2"
    assert document(first / "verdict.json")["class"] == "rank_killed"
    assert document(second / "verdict.json")["outcome"] == "healthy"
    assert document(second / "run.json")["attempt"] == 2
    assert not (jobs.directory / "run.attempt3").exists()


@pytest.mark.slow
def test_there_are_no_more_attempts_than_were_asked_for(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--restart-on", "retry=1", "--", *TORCHRUN)
    done = jobs.run(*line, script(jobs, DRAINED), "9")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (jobs.directory / "attempts").read_text() == "xx"
    assert document(jobs.directory / "run.attempt2" / "verdict.json")["class"] == "rank_killed"


@pytest.mark.slow
def test_the_same_root_twice_is_no_retry(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--restart-on", "retry=5", "--", *TORCHRUN)
    done = jobs.run(*line, script(jobs, DRAINED), "9")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (jobs.directory / "attempts").read_text() == "xx"
    action = document(jobs.directory / "run.attempt2" / "verdict.json")["action"]
    assert action["do"] == "stop" and action["because"].startswith("attempt 1 failed of the same")  # type: ignore[index]


def test_another_root_is_another_chance(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_killed_drained.tar.xz", tmp_path)
    found = judge_directory(run.path)
    assert found.action and found.action.do == "retry"
    before = {"directory": "elsewhere", "signature": found.signature, "guilty_ranks": [*found.guilty_ranks]}
    for changed, do in (({}, "stop"), ({"guilty_ranks": [7]}, "retry"), ({"signature": "other"}, "retry")):
        write_json(run.run, read_json(run.run) | {"earlier": [before | changed]})
        action = judge_directory(run.path).action
        assert action and action.do == do


@pytest.mark.slow
def test_a_failure_that_comes_from_the_code_is_not_retried(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--restart-on", "retry=3", "--", *TORCHRUN[:-1], "1")
    done = jobs.run(*line, script(jobs, RAISES))
    assert done.returncode == 1
    assert (jobs.directory / "attempts").read_text() == "x"
    assert document(jobs.directory / "run" / "verdict.json")["action"]["do"] == "fix code"  # type: ignore[index]


@pytest.mark.parametrize("said", ["stop=3", "retry", "retry=-1", "3"])
def test_what_is_no_number_of_retries_is_refused_before_anything_runs(jobs: Jobs, said: str) -> None:
    done = jobs.run("run", "--out", "run", "--restart-on", said, "--", "true")
    assert done.returncode == 2
    assert "retry=3" in done.stderr
    assert not (jobs.directory / "run").exists()


def test_a_directory_that_a_further_attempt_would_need_is_not_overwritten(jobs: Jobs) -> None:
    (jobs.directory / "run.attempt2").mkdir()
    (jobs.directory / "run.attempt2" / "mine").write_text("kept")
    done = jobs.run("run", "--out", "run", "--restart-on", "retry=2", "--", "true")
    assert done.returncode == 2
    assert "run.attempt2 exists" in done.stderr
    assert not (jobs.directory / "run").exists()
