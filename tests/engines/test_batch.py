"""Engines that others add by entry point run a matrix as ours do, and options of engines are checked before anything starts."""

import json
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.commands.batch.options import nodes_of, seconds_of
from nsadiag.engines.batch import BatchOptions, Task
from nsadiag.engines.slurm import Slurm
from nsadiag.errors import UsageError
from nsadiag.spec import Cell

ENGINE = """
import os, subprocess
from pathlib import Path
from nsadiag.engines.batch import BatchEngine, JobState, seat

class Mine(BatchEngine):
    "Starts each job here, all at once."
    def __init__(self, options):
        self.options, self.jobs = options, {}
    def plan(self, tasks, logs):
        return "".join(f"{task.name} on {task.nodes} nodes\\n" for task in tasks)
    def submit(self, tasks, logs):
        for number, task in enumerate(tasks):
            about = seat(job_id=f"mine{number}", node_rank=0, nnodes=1, master_addr="localhost")
            out = (logs / f"mine{number}.log").open("w")
            self.jobs[f"mine{number}"] = subprocess.Popen(task.command, env=os.environ | about, stdout=out, stderr=out)
        return list(self.jobs)
    def states(self, ids):
        ended = {job for job, started in self.jobs.items() if started.poll() is not None}
        return {job: JobState(phase="ended" if job in ended else "running", words="here") for job in ids}
    def epitaph(self, job_id, logs):
        return [(f"{job_id} ended with {self.jobs[job_id].returncode}", logs / f"{job_id}.log")]
    def cancel(self, ids):
        for job in ids:
            self.jobs[job].terminate()
            self.jobs[job].wait()
"""
SPEC = """
name: tiny
command: cell.py
probes: light
stall_after_s: 1
timeout_s: 200
axes:
  what:
    values:
      ok: {args: ok}
      crash: {args: crash}
      device: {args: ok, gpus: 4}
"""
CELL = """
import sys
if sys.argv[-1] == "crash":
    raise ValueError("the cell's own mistake")
"""


@pytest.fixture
def package(jobs: Jobs) -> dict[str, str]:
    """Variables for a command that finds the engine `mine` of another package."""
    (jobs.directory / "m.yaml").write_text(SPEC)
    (jobs.directory / "cell.py").write_text(CELL)
    site = jobs.directory / "site"
    about = site / "mine-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "mine.py").write_text(ENGINE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nsadiag.engines]\nmine = mine:Mine\n")
    repository = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": f"{site}:{repository}"}


@pytest.mark.slow
def test_an_engine_of_another_package_runs_a_matrix(jobs: Jobs, package: dict[str, str]) -> None:
    out = jobs.directory / "out"
    listed = json.loads(jobs.run("list", "--json", env=package).stdout)["engines"]
    assert list(listed) == ["local", "static", "slurm", "ray", "kubernetes", "mine"]
    planned = jobs.run("matrix", "m.yaml", "--engine", "mine", "--dry-run", env=package)
    assert planned.stdout == "what=ok on 1 nodes\nwhat=crash on 1 nodes\nwhat=device on 1 nodes\n"
    as_json = jobs.run("matrix", "m.yaml", "--engine", "mine", "--dry-run", "--json", env=package).stdout
    assert json.loads(as_json) == {"engine": "mine", "plan": planned.stdout.rstrip()}
    done = jobs.run("matrix", "m.yaml", "--engine", "mine", "--gpus-per-node", "2", "--out", out, env=package)
    cells = json.loads((out / "matrix.json").read_text())["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done", "skipped"], "there are two GPUs at most"
    assert [cell["verdict"]["class"] for cell in cells[:2]] == ["healthy", "rank_exception"], done.stderr
    assert done.returncode == 1 and "submitted 2 jobs to mine" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "slurmm"], "there is no engine 'slurmm'"),
        (["--partition", "debug"], "--partition is for another engine"),
        (["--engine", "slurm", "--time", "soon"], "--time is 'soon'"),
        (["--engine", "slurm", "--slurm", "=1"], "--slurm is '=1'"),
        (["--engine", "slurm", "--slurm", "nodes=4"], "--slurm nodes is not for you to set"),
        (["--engine", "slurm", "--address", "head:6379"], "--address is for another engine, not for slurm"),
        (["--engine", "ray", "--slurm", "qos=high"], "--slurm is for another engine, not for ray"),
        (["--engine", "slurm", "--gpus-per-node", "1", "-k", "layers=1 and fsdp2"], "has 2 ranks a node"),
    ],
)
def test_what_an_engine_cannot_use_is_refused_before_anything_is_written(
    jobs: Jobs, words: list[str], said: str
) -> None:
    done = jobs.run("matrix", "--dry-run", *words)
    assert done.returncode == 2 and said in done.stderr and "hint: " in done.stderr, done.stderr


def test_without_slurm_or_submitit_one_line_says_so(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "submitit.py").write_text("raise ImportError")
    repository = str(Path(__file__).resolve().parents[2])
    hidden = {"PYTHONPATH": f"{tmp_path}:{repository}", "PATH": str(Path(sys.executable).parent)}
    done = jobs.run("matrix", "--engine", "slurm", "--dry-run", env=hidden)
    assert done.returncode == 3 and "pip install 'nsadiag[slurm]'" in done.stderr
    done = jobs.run("matrix", "--engine", "slurm", env={"PATH": str(Path(sys.executable).parent)})
    assert done.returncode == 3 and "there is no sbatch here" in done.stderr
    assert not (jobs.directory / "artifacts").exists()


def test_without_ray_one_line_says_so_and_the_plan_needs_none(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError")
    hidden = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[2]}"}
    done = jobs.run("matrix", "--engine", "ray", env=hidden)
    assert done.returncode == 3 and "pip install 'nsadiag[ray]'" in done.stderr
    assert not (jobs.directory / "artifacts").exists()
    words = (
        "--engine",
        "ray",
        "--dry-run",
        "--nodes",
        "2",
        "--gpus-per-node",
        "1",
        "-k",
        "fsdp2 and layers=1",
    )
    planned = jobs.run("matrix", *words, env=hidden).stdout
    assert "STRICT_SPREAD [{'CPU': 1, 'GPU': 1}, {'CPU': 1, 'GPU': 1}]" in planned


def test_an_address_of_ray_client_is_refused_with_the_way_that_works(jobs: Jobs) -> None:
    done = jobs.run("matrix", "--engine", "ray", "--address", "ray://head:10001")
    assert done.returncode == 2 and "hint: start nsadiag on a node of the cluster" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-0", 172_800), ("1-2:30", 95_400), ("0-0:1:5", 65)],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1:2:3:4", "-5", "a"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        seconds_of(text)


@pytest.mark.parametrize(("ranks", "most", "nodes"), [(4, 2, 2), (1, 4, 1), (3, 2, 1), (6, 4, 3), (2, 8, 2)])
def test_ranks_are_spread_evenly_over_as_many_nodes_as_that_allows(ranks: int, most: int, nodes: int) -> None:
    assert nodes_of(Cell(factors={}, argv=[], world_size=ranks), most) == nodes


def test_more_cells_than_an_array_may_have_are_several_arrays(tmp_path: Path) -> None:
    tasks = [
        Task(name=f"n={n}", module="this", arguments=[], nodes=1, ranks_per_node=1, seconds=60)
        for n in range(2100)
    ]
    text = Slurm(BatchOptions(dry_run=True)).plan(tasks, tmp_path)
    assert [line for line in text.splitlines() if "--array" in line] == [
        "#SBATCH --array=0-999%256", "#SBATCH --array=0-999%256", "#SBATCH --array=0-99%100",
    ]  # fmt: skip
