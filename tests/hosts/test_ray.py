"""`nsadiag matrix --engine ray`: each cell is a job on a placement group, and nothing of it outlives its driver."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.cluster.hosts import DISK, send
from support.cluster.ray_cluster import RayCluster
from support.jobs import BIN, GIVE_UP_S, wait_until

SPEC = """
name: tiny
command: cell.py
probes: light
stall_after_s: 30
timeout_s: 100
world_size: 2
axes:
  what:
    values:
      ok: {args: ok, world_size: 1}
      crash: {args: crash}
      wait: {args: wait}
      wide: {args: ok, world_size: 6}
      device: {args: ok, gpus: 1}
"""
# Ranks that need no torch: a rank is one by its RANK.
CELL = """
import os, signal, sys, time
what, rank = sys.argv[-1], os.environ["RANK"]
print("this is", what, rank, "on", os.uname().nodename, flush=True)
open(f"began-{what}-{rank}-{time.time_ns()}", "w").close()
if what == "crash" and rank == "1":
    raise ValueError("the cell's own mistake")
if what == "wait":
    while not os.path.exists("go-on"):
        time.sleep(0.1)
"""
TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("reduced on rank", dist.get_rank(), flush=True)
if dist.get_rank() == 3:
    raise ValueError("the job's own mistake")
dist.barrier()
"""
SAYS_WHERE = """
import os
print(os.environ["SAID_BY_DRIVER"], open("data.txt").read(), flush=True)
"""
NSADIAG = BIN / "nsadiag"


@pytest.fixture
def directory(ray: RayCluster, request: pytest.FixtureRequest) -> Path:
    """One of its own for each test, on both hosts; nothing of an earlier one runs."""
    here = ray.directory / request.node.name[5:45]
    here.mkdir()
    (here / "cell.py").write_text(CELL)
    (here / "m.yaml").write_text(SPEC)
    return here


def line(select: str, *words: str) -> list[str | Path]:
    return [
        NSADIAG,
        "matrix",
        "m.yaml",
        "--engine",
        "ray",
        "--nodes",
        "2",
        "--out",
        "out",
        "-k",
        select,
        *words,
    ]


def cells_of(directory: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((directory / "out/matrix.json").read_text())["cells"]
    return {cell["factors"]["what"]: cell for cell in found}


def began(directory: Path, what: str) -> int:
    """How many ranks of it have."""
    return len(list(directory.glob(f"began-{what}-*")))


def test_a_cell_has_a_node_for_each_bundle_and_nothing_is_left_behind(
    ray: RayCluster, directory: Path
) -> None:
    done = ray.head.run(*line("ok or crash"), cwd=directory, check=False)
    assert done.returncode == 1, done.stdout + done.stderr + ray.logs()
    cells = cells_of(directory)
    assert {what: cell["verdict"]["class"] for what, cell in cells.items()} == {
        "ok": "healthy", "crash": "rank_exception",
    }, done.stdout + done.stderr  # fmt: skip
    ranks = directory / "out/cells/what=crash/ranks"
    hosts = {json.loads((ranks / f"0000{n}/meta.json").read_text())["host"] for n in (0, 1)}
    assert hosts == {"node0", "node1"} and cells["crash"]["verdict"]["guilty_ranks"] == [1]
    wait_until(lambda: ray.left() == [] and ray.held() == [], "nothing is left of it")
    again = ray.head.run(*line("ok or crash", "--resume"), cwd=directory, check=False)
    assert again.returncode == 1 and (began(directory, "ok"), began(directory, "crash")) == (1, 2)


@pytest.mark.slow
def test_why_a_cell_waits_is_said_and_ctrl_c_takes_it_back(ray: RayCluster, directory: Path) -> None:
    started = ray.head.start(*line("wide or device or wait"), cwd=directory)
    wait_until(lambda: began(directory, "wait") == 2, "the one that fits runs")
    assert started.stderr is not None
    said = ""
    wanted = [
        f"needs 2 nodes with {each} each; the cluster has 0 such nodes of 2"
        for each in ("3 CPUs", "1 CPU and 1 GPU")
    ]
    while not all(words in said for words in wanted):
        said += (new := started.stderr.readline())
        assert new, said
    send(started, signal.SIGINT)
    assert started.wait(120) == 130
    assert json.loads((directory / "out/cells/what=wait/watch.json").read_text())["stopped"] == "interrupt"
    wait_until(lambda: ray.left() == [] and ray.held() == [], "nothing is left of it")


@pytest.mark.slow
def test_jobs_end_with_a_driver_that_is_killed_and_resume_runs_nothing_twice(
    ray: RayCluster, directory: Path
) -> None:
    started = ray.head.start(*line("ok or wait"), cwd=directory)
    wait_until(lambda: began(directory, "wait") == 2, "both ranks wait")
    wait_until((directory / "out/cells/what=ok/verdict.json").exists, "the other cell is done")
    send(started, signal.SIGKILL)
    started.communicate()
    again = ray.head.start(*line("ok or wait", "--resume"), cwd=directory)
    wait_until(lambda: began(directory, "wait") == 4, "the cell is started over")
    (directory / "go-on").touch()
    stdout, stderr = again.communicate(timeout=GIVE_UP_S)
    assert again.returncode == 0, stdout + stderr
    assert {cell["verdict"]["class"] for cell in cells_of(directory).values()} == {"healthy"}
    assert (began(directory, "ok"), began(directory, "wait")) == (1, 4)
    wait_until(lambda: ray.left() == [] and ray.held() == [], "nothing is left of it")


@pytest.mark.slow
def test_a_launcher_line_runs_on_nodes_of_the_cluster_and_its_evidence_is_brought_here(
    ray: RayCluster, directory: Path
) -> None:
    """The script is on every host's own disk, and so is what each of them writes."""
    for host in ray.nodes:
        host.path(DISK / "train.py").write_text(TRAIN)
    words = (
        "run",
        "--engine",
        "ray",
        "--nnodes",
        "2",
        "--out",
        "out",
        "--",
        "torchrun",
        "--nproc-per-node",
        "2",
        "train.py",
    )
    done = ray.head.run(NSADIAG, *words, cwd=DISK, check=False)
    assert done.returncode == 1, done.stdout + done.stderr + ray.logs()
    out = ray.head.path(DISK / "out")
    verdict = json.loads((out / "verdict.json").read_text())
    assert (verdict["class"], verdict["guilty_ranks"], verdict["world_size"]) == ("rank_exception", [3], 4)
    metas = [json.loads((out / f"ranks/0000{rank}/meta.json").read_text()) for rank in range(4)]
    assert {meta["host"] for meta in metas} == {"node0", "node1"}
    assert "reduced on rank 0" in done.stdout and f"{metas[3]['host']}| reduced on rank 3" in done.stdout
    wait_until(lambda: ray.left() == [] and ray.held() == [], "nothing is left of it")
    assert [path for host in ray.nodes for path in host.path("/tmp").glob("nsadiag-*")] == []


@pytest.mark.slow
def test_a_runtime_environment_reaches_the_ranks(ray: RayCluster, directory: Path) -> None:
    """Variables alone leave agents where nsadiag was started; with a working directory they start in a copy of it."""
    (directory / "vars.yaml").write_text("env_vars: {SAID_BY_DRIVER: hello}")
    (directory / "both.yaml").write_text("{env_vars: {SAID_BY_DRIVER: hello}, working_dir: parts}")
    (directory / "parts").mkdir()
    for here in (directory, directory / "parts"):
        (here / "cell.py").write_text(SAYS_WHERE)
        (here / "data.txt").write_text(f"of {here.name}")
    for kind, shown in (("vars", directory.name), ("both", "parts")):
        words = line("ok", "--runtime-env", f"{kind}.yaml", "--force")
        done = ray.head.run(*words, cwd=directory, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + ray.logs()
        logs = [path.read_text() for path in (directory / "out/cells/what=ok").rglob("*stdout.log")]
        assert any(f"hello of {shown}" in log for log in logs), logs
    wait_until(lambda: ray.left() == [] and ray.held() == [], "nothing is left of it")


def test_a_node_that_fails_is_named_with_its_ranks_within_5_s(ray: RayCluster, directory: Path) -> None:
    """Rank 0 is on one of the nodes; the one that does not have the driver fails."""
    started = ray.head.start(*line("wait"), cwd=directory)
    wait_until(lambda: began(directory, "wait") == 2, "both ranks wait")
    metas = (directory / "out/cells/what=wait/ranks").glob("*/meta.json")
    there = {meta["host"]: meta["rank"] for meta in (json.loads(path.read_text()) for path in metas)}
    ray.kill(ray.nodes[1])
    failed, said = time.monotonic(), ""
    assert started.stderr is not None
    while "node1 (" not in said:
        said += (new := started.stderr.readline())
        assert new, said
    assert time.monotonic() - failed < 5, said
    assert f"node1 ({ray.nodes[1].address}), with rank {there['node1']}, " in said, said
    stdout, stderr = started.communicate(timeout=GIVE_UP_S)
    assert started.returncode == 1 and "node1" in cells_of(directory)["wait"]["verdict"]["summary"], (
        stdout + stderr
    )
    wait_until(lambda: ray.left() == [], "nothing is left of it")
