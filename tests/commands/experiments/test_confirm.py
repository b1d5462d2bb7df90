"""`nsadiag confirm`: the command of a run once more, and what its rehearsal says of the cause that was inferred."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.secrets.published import MASK

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
PARTED = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
verbose = rank == 0
ones = torch.ones(2)
for step in range(3):
    dist.all_reduce(ones)
    if verbose and step > 5:
        print("late")
    if verbose and step == 2:
        dist.broadcast(ones, src=0)
dist.barrier()
"""
GUILTY, INNOCENT = 10, 8


@pytest.fixture
def hung(jobs: Jobs) -> tuple[Jobs, RunDir]:
    """A run whose cause is inferred: what a launch leaves is a rehearsal's evidence without its paths and its comparison."""
    script = jobs.directory / "train.py"
    script.write_text(PARTED)
    jobs.run("check", "--out", "run", "--", *TORCHRUN, script)
    run = RunDir(path=jobs.directory / "run")
    run.rehearsal.unlink()
    for rank in run.ranks():
        rank.path_words.unlink()
        rank.path_names.unlink()
    jobs.run("analyze", "run")
    return jobs, run


def verdict_of(run: RunDir) -> dict[str, Any]:
    return json.loads(run.verdict.read_text())  # type: ignore[no-any-return]


def test_an_inferred_cause_is_recorded(hung: tuple[Jobs, RunDir]) -> None:
    jobs, run = hung
    before = verdict_of(run)["because"]
    assert (before["line"], before["how"]) == (GUILTY, "inferred")
    done = jobs.run("confirm", "run", "--json", "--out", "again")
    found, after = json.loads(done.stdout), verdict_of(run)
    assert (done.returncode, found["answer"], found["rehearsal"]) == (0, "confirmed", "differs"), done.stderr
    assert (after["because"]["line"], after["because"]["how"]) == (GUILTY, "recorded")
    assert {v["name"]: v["by_rank"] for v in after["because"]["chain"][0]["values"]} == {
        "verbose": {"0": "True", "1": "False"}
    }
    assert after["evidence"][-1]["source"].startswith("confirmation.json")
    assert json.loads(run.confirmation.read_text())["inferred"]["how"] == "inferred"


def test_a_cause_that_was_wrong_is_refuted(hung: tuple[Jobs, RunDir]) -> None:
    jobs, run = hung
    document = verdict_of(run)
    document["because"] |= {"line": INNOCENT, "chain": []}
    run.verdict.write_text(json.dumps(document))
    done = jobs.run("confirm", "run", "--out", "again")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("refuted:")
    assert f"train.py:{GUILTY}" in done.stdout and f"not train.py:{INNOCENT}" in done.stdout
    assert verdict_of(run)["because"]["line"] == GUILTY


def refusal(jobs: Jobs, *options: str) -> str:
    """What is said where nothing is started."""
    done = jobs.run("confirm", "run", "--out", "again", *options)
    assert done.returncode == 2, done.stdout
    assert not (jobs.directory / "again").exists()
    return done.stderr


def test_a_run_that_cannot_be_confirmed_is_refused_with_the_reason(hung: tuple[Jobs, RunDir]) -> None:
    jobs, run = hung
    about = json.loads(run.run.read_text())

    def told(**changes: Any) -> str:
        run.run.write_text(json.dumps({**about, **changes}))
        return refusal(jobs)

    assert "no command is recorded" in told(command=[])
    assert "not recorded whole" in told(command=["torchrun", "train.py", "--token", MASK])
    run.run.write_text(json.dumps(about))

    metas = {rank.meta: json.loads(rank.meta.read_text()) for rank in run.ranks()}
    for change, said in (
        ({"host": "elsewhere"}, "of another machine: elsewhere"),
        ({"cwd": "/gone"}, "gone: /gone"),
    ):
        for file, meta in metas.items():
            file.write_text(json.dumps({**meta, **change}))
        assert said in refusal(jobs)
    for file, meta in metas.items():
        file.write_text(json.dumps(meta))

    script = jobs.directory / "train.py"
    script.write_text(PARTED + "print('more')\n")
    assert "has changed since the run" in refusal(jobs)
    script.unlink()
    assert "is gone since the run" in refusal(jobs)

    document = verdict_of(run)
    run.verdict.write_text(json.dumps({**document, "outcome": "healthy"}))
    assert "is healthy" in refusal(jobs)
    shutil.rmtree(run.path)
    assert "no verdict.json" in refusal(jobs)


@pytest.mark.slow
def test_a_rehearsal_that_agrees_tells_nothing(hung: tuple[Jobs, RunDir]) -> None:
    jobs, run = hung
    done = jobs.run("confirm", "run", "--out", "again", "--nproc", "1")
    assert done.returncode == 3, done.stdout
    assert done.stdout.startswith("cannot: the rehearsal agreed")
    assert verdict_of(run)["because"]["how"] == "inferred"
