"""Cells side by side: where there is room, with the same results as one after the other, and none left behind."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs, wait_until

from nsadiag.commands.matrix.cells import CellResult
from nsadiag.commands.matrix.claims import timed_cells
from nsadiag.commands.matrix.slots import cheap_to_dear
from nsadiag.engines.room import Machine, Need, fits, free_gpus, has_memory
from nsadiag.spec import Cell, Matrix

# Each rank says that it runs, and those that are to wait do so until the test lets one go.
CELL = """
import os, sys, time
rank, what = os.environ["RANK"], sys.argv[1]
with open("runs.txt", "a") as runs:
    runs.write(f"{what} {rank}\\n")
with open("devices.txt", "a") as devices:
    devices.write(f"{what} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
with open(os.environ["SIGNALS"], "w") as signals:
    signals.write(f"{what} {rank}\\n")
while what.startswith("wait") and not os.path.exists("wait-no-more"):
    time.sleep(0.02)
if what.startswith("crash"):
    raise ValueError("the cell's own mistake")
"""
SPEC = """
name: tiny
command: cell.py
probes: light
stall_after_s: 60
timeout_s: 120
axes:
  what:
    values:
      {values}
"""


def write(jobs: Jobs, **cells: str) -> Path:
    """A spec of these cells, by name with their settings; where the matrix will be."""
    values = "\n      ".join(f"{name}: {{args: {name}{more}}}" for name, more in cells.items())
    (jobs.directory / "spec.yaml").write_text(SPEC.format(values=values))
    (jobs.directory / "cell.py").write_text(CELL)
    return jobs.directory / "matrix"


def cells_of(matrix: Path) -> dict[str, dict[str, Any]]:
    cells = json.loads((matrix / "matrix.json").read_text())["cells"]
    return {cell["factors"]["what"]: cell for cell in cells}


def runs(jobs: Jobs) -> Counter[str]:
    return Counter((jobs.directory / "runs.txt").read_text().splitlines())


def test_two_cells_run_at_once_and_their_results_stand_in_the_order_of_the_spec(jobs: Jobs) -> None:
    matrix = write(jobs, wait_a=", world_size: 2", wait_b="", crash="")
    started = jobs.start("matrix", "spec.yaml", "--out", matrix, "--slots", "2")
    heard = {jobs.signals.wait() for _ in range(4)}
    # The smallest two first; the second of them waits, so that the widest has to begin beside it.
    assert heard == {"crash 0", "wait_b 0", "wait_a 0", "wait_a 1"}
    (jobs.directory / "wait-no-more").touch()
    done = jobs.finish(started)
    assert done.returncode == 1, done.stderr
    found = cells_of(matrix)
    assert list(found) == ["wait_a", "wait_b", "crash"]
    assert [cell["verdict"]["class"] for cell in found.values()] == ["healthy", "healthy", "rank_exception"]
    assert found["wait_b"]["beside"] > 0, "its time is not what it would be alone, and says so"
    with (matrix / "matrix.csv").open() as file:
        assert [row["what"] for row in csv.DictReader(file)] == ["wait_a", "wait_b", "crash"]


@pytest.mark.slow
def test_ctrl_c_ends_all_slots_and_the_rest_is_run_later(jobs: Jobs) -> None:
    matrix = write(jobs, good="", wait_a="", wait_b="")
    arguments = ("matrix", "spec.yaml", "--out", matrix, "--slots", "2")
    started = jobs.start(*arguments, env={"CUDA_VISIBLE_DEVICES": "4,7"})
    assert {jobs.signals.wait() for _ in range(3)} == {"good 0", "wait_a 0", "wait_b 0"}
    devices = dict(line.split() for line in (jobs.directory / "devices.txt").read_text().splitlines())
    assert {devices["wait_a"], devices["wait_b"]} == {"4", "7"}, "each has a GPU of its own"
    wait_until((matrix / "cells/what=good/verdict.json").exists, "the first was judged")
    started.send_signal(signal.SIGINT)
    done = jobs.finish(started)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert {name: cell["state"] for name, cell in cells_of(matrix).items()} == {
        "good": "done", "wait_a": "pending", "wait_b": "pending",
    }  # fmt: skip

    (jobs.directory / "wait-no-more").touch()
    done = jobs.run(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert runs(jobs) == {"good 0": 1, "wait_a 0": 2, "wait_b 0": 2}


@pytest.mark.slow
def test_a_spec_that_wants_its_cells_alone_gets_them_alone(jobs: Jobs) -> None:
    matrix = write(jobs, a="", b="", c="")
    with (jobs.directory / "spec.yaml").open("a") as spec:
        spec.write("alone: true\n")
    done = jobs.run("matrix", "spec.yaml", "--out", matrix, "--slots", "3")
    assert done.returncode == 0, done.stderr
    assert {cell["beside"] for cell in cells_of(matrix).values()} == {0.0}


def test_cells_run_from_cheap_to_dear_with_as_few_changes_of_environment_as_that_allows() -> None:
    cells = [
        CellResult(cell=Cell(factors={"layers": str(n), "threads": t}, argv=[], env={"THREADS": t}))
        for t in ("1", "2", "3") for n in (4, 1)
    ]  # fmt: skip
    ordered = cheap_to_dear(cells, lambda result: float(result.cell.factors["layers"]))
    assert [r.cell.id for r in ordered] == [
        "layers=1,threads=1", "layers=1,threads=2", "layers=1,threads=3",
        "layers=4,threads=3", "layers=4,threads=2", "layers=4,threads=1",
    ]  # fmt: skip


@pytest.mark.parametrize("slots", ["0", "-1", "two", "1.5", "²"])
def test_slots_that_are_no_number_are_refused_in_one_line(jobs: Jobs, slots: str) -> None:
    matrix = write(jobs, a="")
    done = jobs.run("matrix", "spec.yaml", "--out", matrix, "--slots", slots)
    assert done.returncode == 2 and not matrix.exists()
    assert done.stderr.startswith("error: --slots") and len(done.stderr.splitlines()) == 2


def test_ranks_share_the_cores_unless_the_user_asks_for_more() -> None:
    four = Machine(cores=4)
    small = [Need(ranks=1), Need(ranks=2)]
    assert fits(Need(ranks=1), small, four, most=None)
    assert not fits(Need(ranks=2), small, four, most=None)
    assert fits(Need(ranks=2), small, four, most=3)
    assert not fits(Need(ranks=1), small, four, most=2)
    assert fits(Need(ranks=64), [], four, most=None), "a cell alone runs however large it is"


def test_cells_that_time_something_have_no_neighbours() -> None:
    many, timed = Machine(cores=64), Need(ranks=1, alone=True)
    assert not fits(timed, [Need(ranks=1)], many, most=None)
    assert not fits(Need(ranks=1), [timed], many, most=4)


def test_cells_whose_times_a_claim_compares_run_alone() -> None:
    matrix = Matrix.model_validate(
        {
            "name": "m", "command": "train.py",
            "axes": {"layers": {"values": [1, 2, 4]}, "mode": {"values": ["one", "two"]}},
            "hypotheses": [
                {"claim": "linear", "vary": {"layers": [1, 2, 4]}, "confirmed_if": "step time is linear"},
                {"claim": "two fails", "vary": {"mode": ["one", "two"]}, "confirmed_if": "only b fails"},
            ],
        }
    )  # fmt: skip
    assert timed_cells(matrix, matrix.cells()) == {
        "layers=1,mode=one", "layers=2,mode=one", "layers=4,mode=one",
    }  # fmt: skip


def test_no_two_cells_share_a_gpu_even_if_asked() -> None:
    machine = Machine(cores=64, gpus=("0", "1", "5"))
    pair = Need(ranks=2, gpus=2)
    assert fits(Need(ranks=1, gpus=1), [pair], machine, most=4)
    assert not fits(pair, [pair], machine, most=4)
    assert fits(Need(ranks=2), [pair], machine, most=4), "a cell without GPUs may run beside it"
    assert free_gpus(machine, ["0"], 2) == ("1", "5")


def test_a_cell_that_would_not_fit_into_memory_waits() -> None:
    assert has_memory(1, 1.0)
    assert not has_memory(2, 1e9)
