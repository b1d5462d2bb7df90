"""A matrix goes on whatever befalls a cell, and after whatever befalls itself."""

import csv
import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until

SECRET = "word-that-nobody-may-read"
SPEC = f"""
name: tiny
command: cell.py --api-key {SECRET}
probes: light
stall_after_s: 0.5
timeout_s: 60
env: {{EVERY: cell, SOME_TOKEN: {SECRET}}}
axes:
  what:
    values:
      first: {{args: ok}}
      crash: {{args: crash}}
      hang: {{args: hang, world_size: 2}}
      killed: {{args: killed}}
      last: {{args: ok, env: {{ONLY: last}}, world_size: 2}}
"""
CELLS = ("first", "crash", "hang", "killed", "last")
# torch.distributed's own ranks would cost seconds; a rank is one by its RANK.
CELL = """
import os, signal, sys
rank, what = os.environ["RANK"], sys.argv[-1]
with open("runs.txt", "a") as runs:
    runs.write(f"{what} {rank} {os.environ['EVERY']} {os.environ.get('ONLY')}\\n")
with open(os.environ["SIGNALS"], "w") as signals:
    signals.write(f"{what} {rank}\\n")
print("heard from", what, rank)
if what == "crash":
    raise ValueError("the cell's own mistake")
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "hang" and not os.path.exists("hang-no-more"):
    signal.pause()
"""


@pytest.fixture
def matrix(jobs: Jobs) -> Path:
    """Where the matrix will be written."""
    (jobs.directory / "spec.yaml").write_text(SPEC)
    (jobs.directory / "cell.py").write_text(CELL)
    return jobs.directory / "matrix"


def outcomes(matrix: Path) -> dict[str, str | None]:
    cells = json.loads((matrix / "matrix.json").read_text())["cells"]
    return {c["factors"]["what"]: c["verdict"]["outcome"] if c["verdict"] else None for c in cells}


def runs(jobs: Jobs) -> Counter[str]:
    """How often each rank of each cell was started."""
    return Counter(
        " ".join(line.split()[:2]) for line in (jobs.directory / "runs.txt").read_text().splitlines()
    )


@pytest.mark.slow
def test_one_cells_death_does_not_end_the_matrix(jobs: Jobs, matrix: Path) -> None:
    started = jobs.start("matrix", "spec.yaml", "--out", matrix)
    launchers = set()
    for _ in range(7):
        jobs.signals.wait()
        launchers |= {
            pid for pid, line in jobs.left().items() if "-m nsadiag.agent.job.warm_launcher " in line
        }
    done = jobs.finish(started)
    assert len(launchers) == 2, "one, and another for the last cell, which has an environment of its own"
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert outcomes(matrix) == {
        "first": "healthy", "crash": "crashed", "hang": "hung", "killed": "crashed", "last": "healthy",
    }  # fmt: skip
    assert runs(jobs) == {
        "ok 0": 2, "crash 0": 1, "hang 0": 1, "hang 1": 1, "killed 0": 1, "ok 1": 1,
    }  # fmt: skip
    assert_everything_is_on_disk(matrix)
    assert_variables_reach_the_ranks(jobs)
    for word in ("first", "crash", "hang", "killed", "last"):
        assert word in done.stdout
    assert SECRET not in done.stdout + done.stderr
    holding = [p for p in matrix.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert [str(p.relative_to(matrix)) for p in holding] == []


def assert_everything_is_on_disk(matrix: Path) -> None:
    document = json.loads((matrix / "matrix.json").read_text())
    assert document["schema_version"] == 1
    assert [cell["id"] for cell in document["cells"]] == [f"what={what}" for what in CELLS]
    assert document["totals"] | {"wall_s": 0} == {
        "cells": 5, "done": 5, "healthy": 2, "findings": 3, "wall_s": 0,
    }  # fmt: skip
    with (matrix / "matrix.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows] == list(CELLS)
    assert [row["outcome"] for row in rows] == ["healthy", "crashed", "hung", "crashed", "healthy"]
    assert all(float(row["wall_s"]) > 0 for row in rows)
    verdicts = [json.loads((matrix / f"cells/what={what}/verdict.json").read_text()) for what in CELLS]
    assert [v["class"] for v in verdicts][:2] == ["healthy", "rank_exception"]
    assert verdicts[1]["where"]["code"] == 'raise ValueError("the cell\'s own mistake")'
    assert verdicts[3]["class"] == "rank_killed"
    assert [v["world_size"] for v in verdicts] == [1, 1, 2, 1, 2]
    for report in ("report.md", "report.html"):
        assert all(
            f"what={what}" in (matrix / report).read_text() or what in (matrix / report).read_text()
            for what in CELLS
        )
    assert (matrix / "cells/what=last/ranks/00001/stdout.log").read_text() == "heard from ok 1\n"


def assert_variables_reach_the_ranks(jobs: Jobs) -> None:
    lines = (jobs.directory / "runs.txt").read_text().splitlines()
    assert {line.split(maxsplit=2)[2] for line in lines if not line.startswith("ok")} == {"cell None"}
    assert sorted(line for line in lines if line.startswith("ok")) == [
        "ok 0 cell None", "ok 0 cell last", "ok 1 cell last",
    ]  # fmt: skip


def test_an_ended_matrix_is_taken_up_where_it_stopped(jobs: Jobs, matrix: Path) -> None:
    """Interrupted in its second cell, taken up, killed there, taken up again: no finished cell runs twice."""
    (jobs.directory / "spec.yaml").write_text(SPEC.replace("stall_after_s: 0.5", "stall_after_s: 60"))
    arguments = ("matrix", "spec.yaml", "--out", matrix, "-k", "first or hang")
    started = jobs.start(*arguments)
    assert {jobs.signals.wait() for _ in range(3)} == {"ok 0", "hang 0", "hang 1"}
    started.send_signal(signal.SIGINT)
    done = jobs.finish(started)
    assert done.returncode == 130, done.stderr
    assert "error: interrupted\n" in done.stderr and "Traceback" not in done.stderr
    assert (matrix / "report.html").exists()
    assert outcomes(matrix) == {"first": "healthy", "hang": None}
    finished = (matrix / "cells/what=first/verdict.json").stat().st_mtime_ns

    refused = jobs.run(*arguments)  # the same line once more
    assert refused.returncode == 2 and "holds a matrix already" in refused.stderr
    assert "hint: --resume keeps its finished cells" in refused.stderr

    started = jobs.start(*arguments, "--resume")
    assert {jobs.signals.wait() for _ in range(2)} == {"hang 0", "hang 1"}
    started.kill()
    started.communicate()
    wait_until(lambda: not jobs.left(), "what the killed one left behind gone")

    (jobs.directory / "hang-no-more").touch()
    done = jobs.run(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert outcomes(matrix) == {"first": "healthy", "hang": "healthy"}
    assert runs(jobs) == {"ok 0": 1, "hang 0": 3, "hang 1": 3}
    assert (matrix / "cells/what=first/verdict.json").stat().st_mtime_ns == finished


def test_an_interrupt_before_the_first_cell_leaves_nothing_running(jobs: Jobs, matrix: Path) -> None:
    started = jobs.start("matrix", "spec.yaml", "--out", matrix)
    wait_until(lambda: "-m nsadiag.agent.job.warm_launcher" in str(jobs.left()), "the launcher started")
    started.send_signal(signal.SIGINT)
    done = jobs.finish(started)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert set(outcomes(matrix).values()) == {None}


def test_another_matrix_is_not_taken_up(jobs: Jobs, matrix: Path) -> None:
    matrix.mkdir()
    (matrix / "run.json").write_text(json.dumps({"kind": "matrix", "spec": {"name": "other"}}))
    done = jobs.run("matrix", "spec.yaml", "--out", matrix, "--resume")
    assert done.returncode == 2 and "another matrix" in done.stderr
    assert sorted(path.name for path in matrix.iterdir()) == ["run.json"]


def test_a_dry_run_prints_every_command_and_runs_nothing(jobs: Jobs, matrix: Path) -> None:
    done = jobs.run("matrix", "spec.yaml", "--dry-run", "--out", matrix)
    assert done.returncode == 0 and not matrix.exists()
    assert "torchrun --standalone --nproc-per-node 2 cell.py" in done.stdout
    cells = json.loads(jobs.run("matrix", "spec.yaml", "--dry-run", "--json").stdout)
    assert [cell["world_size"] for cell in cells] == [1, 1, 2, 1, 2]
    assert not (jobs.directory / "runs.txt").exists()


def test_a_dry_run_shows_repeats_as_cells_of_their_own(jobs: Jobs, matrix: Path) -> None:
    done = jobs.run("matrix", "spec.yaml", "-k", "first", "--repeat", "2", "--dry-run", "--json")
    assert [cell["id"] for cell in json.loads(done.stdout)] == ["what=first,repeat=1", "what=first,repeat=2"]
