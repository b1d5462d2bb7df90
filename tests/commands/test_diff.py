"""`nsadiag diff`: two runs or two ranks side by side, from real jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs
from support.processes.forking import FORKING
from support.processes.warm_python import WarmPython

from nsadiag.evidence.layout import read_json, write_json

JOB = """
import os, sys, torch, torch.distributed as dist

rate = float(sys.argv[1])
torch.backends.cudnn.benchmark = rate > 0.05
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(12):
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

# By name: the learning rate, and what is added to the environment. `slow` and `again` are alike, `fast` learns faster.
RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "slow": ("0.01", {}),
    "again": ("0.01", {}),
    "fast": ("0.1", {"NCCL_DEBUG": "WARN"}),
}


class Runs:
    """Runs of two ranks, each made when it is first asked for."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        (jobs.directory / "job.py").write_text(JOB)

    def directory(self, name: str) -> Path:
        directory = self.jobs.directory / name
        if not directory.exists():
            rate, more = RUNS[name]
            done = self.jobs.run("run", "--out", name, "--", *FORKING, "2", "job.py", rate, env=more)
            assert done.returncode == 0, done.stderr
        return directory

    def diff(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.jobs.run("diff", *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, warm_command: WarmPython) -> Iterator[Runs]:
    jobs = Jobs(tmp_path_factory.mktemp("diff"), warm_command)
    yield Runs(jobs)
    jobs.close()


def diffed(runs: Runs, a: Path, b: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the rows by name."""
    done = runs.diff("--json", a, b)
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.slow
def test_two_runs_of_the_same_agree_in_all_but_the_timing(runs: Runs) -> None:
    code, rows = diffed(runs, runs.directory("slow"), runs.directory("again"))
    assert code == 0, [row for row in rows.values() if row["differs"]]
    assert rows["sums after steps 0, 1, 2, 4, 8"]["a"] == "equal"
    assert rows["step, s"]["ratio"] > 0
    assert rows["class"]["a"] == rows["class"]["b"] == "healthy"


@pytest.mark.slow
def test_what_differs_is_named_down_to_the_parameter(runs: Runs) -> None:
    code, rows = diffed(runs, runs.directory("slow"), runs.directory("fast"))
    assert code == 1
    differing = {name for name, row in rows.items() if row["differs"] and row["section"] != "timing"}
    assert {"NCCL_DEBUG", "flags.cudnn_benchmark", "optimizer.groups[0].lr"} <= differing
    assert "sum of weight after step 1" in differing
    assert not any("after step 0" in name for name in differing)
    assert rows["NCCL_DEBUG"]["a"] is None and rows["NCCL_DEBUG"]["b"] == "WARN"
    assert "torch" in rows and "torch" not in differing


def test_two_ranks_of_one_run_agree(runs: Runs) -> None:
    ranks = runs.directory("slow") / "ranks"
    code, rows = diffed(runs, ranks / "00000", ranks / "00001")
    assert code == 0, [row for row in rows.values() if row["differs"]]
    assert {row["section"] for row in rows.values()} >= {"versions", "settings", "timing", "parameters"}


def test_a_verdict_and_a_version_that_differ(runs: Runs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs.directory("slow"), other)
    verdict = read_json(other / "verdict.json")
    write_json(other / "verdict.json", verdict | {"class": "slow_compute", "outcome": "slow"})
    for rank in sorted((other / "ranks").iterdir()):
        settings = read_json(rank / "settings.json")
        settings["versions"]["torch"] = "2.4.0"
        write_json(rank / "settings.json", settings)
    done = runs.diff(runs.directory("slow"), other)
    assert done.returncode == 1
    assert "slow_compute" in done.stdout and "2.4.0" in done.stdout
    assert "3 differences: versions, verdict" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize("path", ["nowhere", "job.py", "."])
def test_what_is_no_run_is_refused_in_one_line(runs: Runs, path: str) -> None:
    done = runs.diff(runs.directory("slow"), path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "hint: " in done.stderr
