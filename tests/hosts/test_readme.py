"""The lines of the guide, "Several nodes", and the job script of docs/clusters.md, run as they are written, on two hosts and under Slurm."""

import json
import re
from pathlib import Path

import pytest
from support.cluster.hosts import Host, Hosts
from support.cluster.slurm import Slurm
from support.jobs import GIVE_UP_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guide.md").read_text()
SECTION = GUIDE.partition("\n## Several nodes\n")[2].partition("\n## ")[0]
SPEC = next(block for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL) if "name: threads" in block)
ON_0, ON_1, SLURM = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
TRAIN = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(4))
while os.path.exists("hang") and dist.get_rank() == 3:
    open("hangs", "w").close()
    time.sleep(0.5)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
srun torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id 1 train.py
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With the spec of the guide, of which one cell is enough here, and a job that is no model."""
    assert "world_size: 2\n" in SPEC and "world_size: 4" in SECTION
    spec = SPEC.replace("world_size: 2\n", "world_size: 4\n")
    # The same, but for its size: two settings of one axis are left, and a script that takes a second.
    spec = re.sub(r"command: .*", "command: train.py", spec).replace("preload: [nsa.train]", "preload: []")
    spec = spec.partition("  buckets:")[0].replace("values: [1, 2]", "values: [1]")
    (tmp_path / "threads.yaml").write_text(spec)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def shell(host: Host, lines: str, directory: Path, **variables: str) -> str:
    """As it would be pasted; what it said."""
    done = host.run("bash", "-c", f"set -e\n{lines}", cwd=directory, env=variables, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def outcome(path: Path) -> str:
    return str(json.loads((path / "verdict.json").read_text())["outcome"])


@pytest.mark.slow
def test_the_lines_for_two_nodes_run_as_they_are_written(hosts: Hosts, directory: Path) -> None:
    other = hosts[1].start("bash", "-c", f"set -e\n{ON_1}", cwd=directory)
    shell(hosts[0], ON_0, directory)
    said = "".join(other.communicate(timeout=GIVE_UP_S))
    assert other.returncode == 0, said
    assert (
        outcome(directory / "DIR") == "healthy" and outcome(directory / "MATRIX/cells/threads=1") == "healthy"
    )
    for place in ("DIR", "MATRIX/cells/threads=1"):
        metas = sorted((directory / place).glob("ranks/*/meta.json"))
        assert [json.loads(meta.read_text())["host"] for meta in metas] == [
            "node0",
            "node0",
            "node1",
            "node1",
        ]
    assert hosts.left() == {}


def test_the_lines_for_slurm_run_as_they_are_written(slurm: Slurm, directory: Path) -> None:
    matrix, attach = SLURM.splitlines()
    shell(slurm.head, matrix, directory)
    assert outcome(directory / "SLURM/cells/threads=1") == "healthy"
    (directory / "job.sh").write_text(BATCH)
    (directory / "hang").touch()
    job = slurm.head.run("sbatch", "--parsable", "job.sh", cwd=directory).stdout.strip()
    wait_until((directory / "hangs").exists, "rank 3 hangs")
    said = slurm.head.run("bash", "-c", attach, cwd=directory, env={"JOB": job}, check=False)
    assert said.returncode == 1 and outcome(directory / "ATTACHED") == "hung", said.stdout + said.stderr
    slurm.head.run("scancel", job)


@pytest.mark.slow
def test_the_job_script_of_the_docs_runs_as_it_is_written(slurm: Slurm, directory: Path) -> None:
    """But for four nodes and eight GPUs on each, which there are not."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/clusters.md").read_text(), re.DOTALL)
    (script,) = [block for block in blocks if "#SBATCH" in block]
    assert all(each in script for each in ("--nodes=4", "--gpus-per-node=8", "--nproc-per-node 8"))
    script = script.replace("--nodes=4", "--nodes=2").replace("--gpus-per-node=8", "--gpus-per-node=2")
    (directory / "job.sh").write_text(script.replace("--nproc-per-node 8", "--nproc-per-node 2"))
    job = slurm.head.run("sbatch", "--parsable", "job.sh", cwd=directory).stdout.strip()
    wait_until(
        lambda: slurm.job(job).get("JobState") not in ("PENDING", "RUNNING", "COMPLETING"), "it ends", 120
    )
    said = (directory / f"slurm-{job}.out").read_text()
    assert outcome(directory / "runs" / job) == "healthy" and slurm.job(job)["JobState"] == "COMPLETED", said
