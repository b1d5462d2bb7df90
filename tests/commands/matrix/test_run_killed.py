"""A matrix whose nsadiag was killed: taken up again, nothing runs twice, and nothing of the killed one stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until

CELLS = ("a", "b", "c")
CELL = """
import os, signal, sys, time
rank, what = os.environ["RANK"], sys.argv[1]
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("runs.txt", "a") as runs:
    runs.write(f"{what}\\n")
with open(os.environ["SIGNALS"], "w") as signals:
    signals.write(f"{what} {os.getpid()}\\n")
if what == "deaf" and not os.path.exists("deaf-no-more"):
    signal.pause()
    signal.pause()
time.sleep(0.3)
with open("ended.txt", "a") as ended:
    ended.write(f"{what}\\n")
"""
SPEC = """
name: tiny
command: cell.py
probes: light
stall_after_s: 60
axes:
  what: {{values: [{cells}], args: "{{value}}"}}
"""


@pytest.fixture
def matrix(jobs: Jobs) -> Path:
    """Where the matrix of CELLS will be."""
    return write(jobs, CELLS)


def write(jobs: Jobs, cells: tuple[str, ...]) -> Path:
    (jobs.directory / "spec.yaml").write_text(SPEC.format(cells=", ".join(cells)))
    (jobs.directory / "cell.py").write_text(CELL)
    return jobs.directory / "matrix"


def counted(jobs: Jobs, name: str) -> Counter[str]:
    path = jobs.directory / name
    return Counter(path.read_text().split() if path.exists() else [])


def judged(matrix: Path) -> set[str]:
    """Cells whose verdict is on disk."""
    return {path.parent.name.removeprefix("what=") for path in matrix.glob("cells/*/verdict.json")}


def begin(jobs: Jobs, matrix: Path) -> subprocess.Popen[str]:
    resume = ["--resume"] if matrix.exists() else []
    return jobs.start("matrix", "spec.yaml", "--out", matrix, *resume)


def kill(jobs: Jobs, started: subprocess.Popen[str]) -> None:
    """As the kernel does it where memory is short: nsadiag alone, without a word."""
    started.kill()
    started.communicate()


def assert_done_once(jobs: Jobs, matrix: Path, before: set[str]) -> None:
    """Resumes to the end; no cell in `before` is run again."""
    ran = counted(jobs, "runs.txt")
    done = jobs.finish(begin(jobs, matrix))
    assert done.returncode == 0, done.stderr
    cells = json.loads((matrix / "matrix.json").read_text())["cells"]
    assert [(c["factors"]["what"], c["state"], c["verdict"]["outcome"]) for c in cells] == [
        (name, "done", "healthy") for name in CELLS
    ]
    again = counted(jobs, "runs.txt") - ran
    assert not before & set(again), f"{before} were done, and {dict(again)} ran again"
    assert all(c["costs"]["run_s"] > 0 and c["wall_s"] > 0 for c in cells), "costs are known of those, too"
    assert not (matrix / "running.jsonl").exists()


@pytest.mark.slow
def test_killed_at_one_instant_after_another_nothing_runs_twice(jobs: Jobs, matrix: Path) -> None:
    cell = matrix / "cells" / "what=a"
    instants: list[tuple[str, Callable[[], object]]] = [
        ("the directory is there", matrix.exists),
        ("a launcher is about to start", lambda: "launcher" in read(matrix / "running.jsonl")),
        ("the first rank runs", lambda: counted(jobs, "runs.txt")["a"]),
        ("its job has ended", (cell / "watch.json").exists),
        ("its verdict is there", (cell / "verdict.json").exists),
    ]
    ran: Counter[str] = Counter()
    for what, happened in instants:
        before, ran = judged(matrix), counted(jobs, "runs.txt")
        started = begin(jobs, matrix)
        wait_until(happened, what)
        kill(jobs, started)
        again = counted(jobs, "runs.txt") - ran
        assert not before & set(again), f"{what}: {before} were done, and {dict(again)} ran again"
    assert_done_once(jobs, matrix, judged(matrix))
    assert counted(jobs, "ended.txt")["a"] == 1, (
        "it had ended when its nsadiag was killed, and only lacked its verdict"
    )


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_killed_at_random_instants_nothing_runs_twice(jobs: Jobs, matrix: Path) -> None:
    chance = random.Random(5)
    for _ in range(25):
        before, ran = judged(matrix), counted(jobs, "runs.txt")
        started = begin(jobs, matrix)
        time.sleep(chance.uniform(0.0, 8.0))
        kill(jobs, started)
        again = counted(jobs, "runs.txt") - ran
        assert not before & set(again)
        if before == set(CELLS):
            break
    assert_done_once(jobs, matrix, judged(matrix))


@pytest.mark.slow
def test_what_a_killed_one_left_running_is_ended_first(jobs: Jobs) -> None:
    matrix = write(jobs, ("deaf",))
    started = begin(jobs, matrix)
    pid = int(jobs.signals.wait().split()[1])
    # Its guards would end what is left; they are killed with it, as by `systemctl kill`.
    for guard in [pid for pid, line in jobs.left().items() if "guard.py" in line]:
        os.kill(guard, signal.SIGKILL)
    kill(jobs, started)
    assert pid in jobs.left(), "a rank that ignores SIGTERM outlives its launcher"
    (jobs.directory / "deaf-no-more").touch()
    started = begin(jobs, matrix)
    successor = int(jobs.signals.wait().split()[1])
    assert pid not in jobs.left(), "two of one cell would have run at once"
    assert successor != pid
    done = jobs.finish(started)
    assert done.returncode == 0, done.stderr
    assert "that a killed nsadiag had left running" in done.stderr


def test_a_killed_one_leaves_nobody_running(jobs: Jobs) -> None:
    started = begin(jobs, write(jobs, ("deaf",)))
    jobs.signals.wait()
    kill(jobs, started)
    wait_until(lambda: not jobs.left(), "a rank that ignores SIGTERM, and its launcher, gone")


@pytest.mark.slow
def test_a_matrix_that_is_being_run_is_left_alone(jobs: Jobs) -> None:
    matrix = write(jobs, ("deaf",))
    started = begin(jobs, matrix)
    jobs.signals.wait()
    for option in ("--resume", "--force"):
        refused = subprocess.run(
            [*started.args[:1], "matrix", "spec.yaml", "--out", str(matrix), option],
            cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert refused.returncode == 2
        assert f"error: {matrix} is being run by process {started.pid}" in refused.stderr
        assert "hint:" in refused.stderr and len(refused.stderr.splitlines()) == 2
    assert counted(jobs, "runs.txt") == {"deaf": 1}
    started.terminate()
    assert jobs.finish(started).returncode == 130


def test_what_ran_on_another_host_cannot_be_seen_from_here(jobs: Jobs, matrix: Path) -> None:
    started = begin(jobs, matrix)
    wait_until((matrix / "run.json").exists, "the matrix has begun")
    kill(jobs, started)
    (matrix / "running.jsonl").write_text('{"pid": 1, "host": "elsewhere"}\n{"launcher": "1234"}\n')
    done = jobs.run("matrix", "spec.yaml", "--out", matrix, "--resume")
    assert done.returncode == 2 and "was last run on elsewhere" in done.stderr
    assert (matrix / "running.jsonl").exists()
