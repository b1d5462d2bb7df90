"""`--costs`: what each test takes of the processor."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.costs import Costs, read


def test_the_processes_that_a_test_waits_for_are_counted_apart(tmp_path: Path) -> None:
    item: Any = SimpleNamespace(nodeid="tests/test_x.py::test_y")
    hook: Any = Costs(tmp_path / "costs.jsonl").pytest_runtest_protocol(item)
    next(hook)
    subprocess.run([sys.executable, "-c", "sum(range(1_000_000))"], check=True)
    with contextlib.suppress(StopIteration):
        hook.send(None)
    (cost,) = read(tmp_path / "costs.jsonl")
    assert cost.test == "tests/test_x.py::test_y"
    assert cost.children_cpu_s > cost.own_cpu_s >= 0
    assert cost.wall_s > 0
