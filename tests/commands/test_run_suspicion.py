"""Hangs that are proven are stopped at once; those that are suspected are told, and nothing is stopped while patience lasts."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
from support.jobs import Jobs
from support.processes.forking import FORKING

TWO_RANKS = (*FORKING, "2")
# Rank 0 hashes and sleeps in short naps while it uploads; its peer waits in a broadcast.
UPLOADS = """
    import hashlib, sys, time
    import torch, torch.distributed as dist

    def upload(chunks):
        while chunks > 0:
            hashlib.sha256(bytes(1000)).hexdigest()
            time.sleep(0.2)
            chunks -= 1

    dist.init_process_group("gloo")
    x, w = torch.ones(4), torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        dist.all_reduce(x)
        x /= 2
        if step == 8 and dist.get_rank() == 0:
            upload(int(sys.argv[1]))
        dist.broadcast(x, 0)
    print("trained", flush=True)
    dist.destroy_process_group()
"""
# Each rank waits in another collective: nobody is left who could let them go on.
DISAGREE = """
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.ones(4)
    for step in range(8):
        dist.all_reduce(x)
        x /= 2
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(x, group=one if dist.get_rank() else other)
"""


def script(jobs: Jobs, source: str) -> str:
    (jobs.directory / "train.py").write_text(dedent(source))
    return "train.py"


def verdict(jobs: Jobs) -> dict[str, object]:
    found: dict[str, object] = json.loads((jobs.directory / "run/verdict.json").read_text())
    return found


def test_a_rank_that_naps_while_it_uploads_is_suspected_and_the_job_lives(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--stall-after", "2", "--patience", "auto", "--", *TWO_RANKS)
    run = jobs.run(*line, script(jobs, UPLOADS), "60")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("trained\n") == 2
    assert "nsadiag: suspected hang, no progress for" in run.stderr
    assert "nsadiag: no hang: the job continued after" in run.stderr
    found = verdict(jobs)
    assert (found["outcome"], found["certainty"]) == ("healthy", None)
    watched = json.loads((jobs.directory / "run/watch.json").read_text())
    assert [s["withdrawn_s"] is not None for s in watched["suspicions"]] == [True]


def test_a_suspicion_is_withdrawn_by_a_rank_that_goes_on_and_ends_at_once(jobs: Jobs) -> None:
    source = UPLOADS.replace(
        "        dist.broadcast(x, 0)\n", "        dist.broadcast(x, 0)\n        step == 8 and os._exit(0)\n"
    )
    line = ("run", "--out", "run", "--stall-after", "2", "--patience", "auto", "--", *TWO_RANKS)
    run = jobs.run(*line, script(jobs, source.replace("import hashlib", "import os, hashlib")), "60")
    assert "nsadiag: suspected hang, no progress for" in run.stderr, run.stderr
    assert "nsadiag: no hang: the job continued after" in run.stderr
    watched = json.loads((jobs.directory / "run/watch.json").read_text())
    assert [s["withdrawn_s"] is not None for s in watched["suspicions"]] == [True]


@pytest.mark.slow
def test_a_suspected_hang_counts_once_patience_is_over(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--stall-after", "2", "--patience", "9", "--", *TWO_RANKS)
    run = jobs.run(*line, script(jobs, UPLOADS), "9000")
    assert run.returncode == 1, run.stderr
    assert "nsadiag: suspected hang" in run.stderr
    found = verdict(jobs)
    assert (found["outcome"], found["certainty"], found["guilty_ranks"]) == ("hung", "suspected", [0])
    watched = json.loads((jobs.directory / "run/watch.json").read_text())
    assert watched["looks"][-1]["t_s"] - watched["last_progress_s"] >= 9


@pytest.mark.parametrize("on_hang", ["stop", pytest.param("stop-proven", marks=pytest.mark.slow)])
def test_a_proven_hang_is_stopped_however_long_patience_lasts(jobs: Jobs, on_hang: str) -> None:
    line = ("run", "--out", "run", "--patience", "500", "--on-hang", on_hang, "--", *TWO_RANKS)
    run = jobs.run(*line, script(jobs, DISAGREE))
    assert run.returncode == 1, run.stderr
    assert "suspected" not in run.stderr
    found = verdict(jobs)
    assert (found["outcome"], found["certainty"]) == ("hung", "proven")


@pytest.mark.slow
def test_a_suspected_hang_is_never_stopped_where_only_proven_ones_are(jobs: Jobs) -> None:
    line = ("run", "--out", "run", "--stall-after", "2", "--patience", "1", "--on-hang", "stop-proven")
    run = jobs.run(*line, "--", *TWO_RANKS, script(jobs, UPLOADS), "40")
    assert run.returncode == 0, run.stderr
    assert "nsadiag: suspected hang" in run.stderr
