"""`--costs`: what each test takes of the processor."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.costs import Cost, Costs, read

BUSY = "sum(range(5_000_000))"
FORKS = f"""
import os, sys
for line in sys.stdin:
    if os.fork() == 0:
        {BUSY}
        os._exit(0)
    os.wait()
    print("done", flush=True)
"""


def cost_of(body: Callable[[], object], folder: Path) -> Cost:
    item: Any = SimpleNamespace(nodeid="tests/test_x.py::test_y")
    hook: Any = Costs(folder / "costs.jsonl").pytest_runtest_protocol(item)
    next(hook)
    body()
    with contextlib.suppress(StopIteration):
        hook.send(None)
    (cost,) = read(folder / "costs.jsonl")
    assert cost.test == "tests/test_x.py::test_y"
    return cost


def test_the_processes_that_a_test_waits_for_are_counted_apart(tmp_path: Path) -> None:
    cost = cost_of(lambda: subprocess.run([sys.executable, "-c", BUSY], check=True), tmp_path)
    assert cost.children_cpu_s > cost.own_cpu_s >= 0
    assert cost.wall_s > 0


def test_what_a_warm_process_forked_for_a_test_is_counted_though_it_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as warm:
        assert warm.stdin is not None and warm.stdout is not None

        def fork_one() -> None:
            print(file=warm.stdin, flush=True)
            assert warm.stdout is not None and warm.stdout.readline() == "done\n"

        fork_one()
        cost = cost_of(fork_one, tmp_path)
    assert cost.children_cpu_s > cost.own_cpu_s >= 0
