"""`nsadiag attach slurm:JOBID`: the ranks of all nodes are looked at together, and the job goes on as it was."""

import json
from pathlib import Path

import pytest
from support.cluster.slurm import Slurm
from support.jobs import BIN, wait_until

NSADIAG = BIN / "nsadiag"
SCRIPT = """
import os, time
import torch
import torch.distributed as dist

def upload():
    while not os.path.exists("go-on"):
        time.sleep(0.5)

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    if rank == 3 and step == 3:
        open("stuck", "w").close()
        upload()
    dist.all_reduce(torch.ones(4))
open(f"done-{rank}", "w").close()
dist.destroy_process_group()
"""
BATCH = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0
srun {BIN}/torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id 1 train.py
"""


@pytest.mark.slow  # README's lines, which are run as well, have one like it
def test_a_job_on_two_nodes_is_judged_as_one_and_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(BATCH)
    job = slurm.head.run("sbatch", "--parsable", "job.sh", cwd=tmp_path).stdout.strip()
    wait_until((tmp_path / "stuck").exists, f"rank 3 is stuck: {slurm.logs()}")
    out = tmp_path / "out"
    done = slurm.head.run(NSADIAG, "attach", f"slurm:{job}", "--out", out, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    verdict = json.loads((out / "verdict.json").read_text())
    assert (verdict["class"], verdict["guilty_ranks"], verdict["world_size"]) == ("external_wait", [3], 4)
    assert verdict["where"]["function"] == "upload" and sorted(verdict["blocked_ranks"]) == [0, 1, 2]
    assert sorted(path.name for path in (out / "nodes").iterdir()) == ["node0", "node1"]
    (tmp_path / "go-on").touch()
    wait_until(
        lambda: len(list(tmp_path.glob("done-*"))) == 4, "the job goes on, and all ranks get to its end", 60
    )
    # How two torchruns part at the end is theirs, and may take minutes.
    slurm.head.run("scancel", job)
    wait_until(lambda: not slurm.jobs(), "it is over")
    again = slurm.head.run(NSADIAG, "attach", f"slurm:{job}", cwd=tmp_path, check=False)
    assert again.returncode == 2 and f"Slurm has no job {job} that waits or runs" in again.stderr


@pytest.mark.parametrize("shared", [True, False])
def test_what_cannot_be_attached_to_is_one_clear_line(slurm: Slurm, tmp_path: Path, shared: bool) -> None:
    job = slurm.head.run(
        "sbatch", "--parsable", "-N2", "--wrap", "srun sleep 100", cwd=tmp_path
    ).stdout.strip()
    wait_until(lambda: any("RUNNING" in line for line in slurm.jobs()), "it runs")
    out = tmp_path / "out" if shared else Path("/mnt/out")
    done = slurm.head.run(NSADIAG, "attach", f"slurm:{job}", "--out", out, cwd=tmp_path, check=False)
    assert done.returncode == (2 if shared else 3), done.stderr
    assert ("has no rank on node0, node1" if shared else "does not see /mnt/out") in done.stderr
    assert "hint: " in done.stderr and "Traceback" not in done.stderr
    slurm.head.run("scancel", job)


@pytest.mark.slow
def test_of_a_node_that_does_not_answer_nothing_is_claimed(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(BATCH)
    job = slurm.head.run("sbatch", "--parsable", "job.sh", cwd=tmp_path).stdout.strip()
    wait_until((tmp_path / "stuck").exists, "rank 3 is stuck")
    slurm.nodes[1].unplug()
    line = (NSADIAG, "attach", f"slurm:{job}", "--out", "out")
    done = slurm.head.run(*line, cwd=tmp_path, check=False)
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert done.returncode == 1 and verdict["outcome"] == "unknown" and verdict["guilty_ranks"] == []
    assert "node1: no snapshot of its ranks could be taken" in verdict["gaps"]
    assert (tmp_path / "out/ranks/00000/captures/02/py_spy.json").exists()


def test_where_every_rank_of_a_job_on_two_nodes_stands(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(BATCH)
    job = slurm.head.run("sbatch", "--parsable", "job.sh", cwd=tmp_path).stdout.strip()
    wait_until((tmp_path / "stuck").exists, f"rank 3 is stuck: {slurm.logs()}")

    def ranks() -> dict[int, dict[str, str]]:
        done = slurm.head.run(NSADIAG, "where", f"slurm:{job}", "--json", cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return {row["rank"]: row for row in json.loads(done.stdout)["ranks"]}

    wait_until(lambda: all("all_reduce" in ranks()[r]["call"] for r in (0, 1, 2)), "the others wait for it")
    found = ranks()
    assert [found[r]["host"] for r in range(4)] == ["node0", "node0", "node1", "node1"]
    assert found[3]["place"].endswith("in upload")
    slurm.head.run("scancel", job)
