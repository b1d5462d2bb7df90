"""The CPU time of each test, that of the processes it waited for included: `make test ARGS=--costs=FILE`.

Jobs that a warm process forks are its children: what they took counts for the test in which they end.

    python -m tests.support.costs FILE     # by test file, the most expensive first

Wall time says little on a busy machine; CPU time tells what to make cheaper on any.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    test: str
    wall_s: float
    own_cpu_s: float
    children_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.own_cpu_s + self.children_cpu_s


class Costs:
    """A pytest plugin that appends one line a test to a file, which several workers share."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _used()
        try:
            return (yield)
        finally:
            wall, own, children = (now - then for now, then in zip(_used(), before, strict=True))
            line = json.dumps(astuple(Cost(item.nodeid, round(wall, 3), round(own, 3), round(children, 3))))
            with self.file.open("a") as file:
                file.write(line + "\n")


def _used() -> tuple[float, float, float]:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = children.ru_utime + children.ru_stime
    return time.monotonic(), own.ru_utime + own.ru_stime, ended + sum(map(_lived, _living()))


def _living() -> set[str]:
    """Pids of children that nobody has waited for."""
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }


def _lived(pid: str) -> float:
    """What a child took so far, with all that it waited for itself."""
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it has just been waited for
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_A_SECOND


def read(file: Path) -> list[Cost]:
    return [Cost(*json.loads(line)) for line in file.read_text().splitlines()]


def main() -> None:
    by_file: dict[str, list[Cost]] = defaultdict(list)
    for cost in read(Path(sys.argv[1])):
        by_file[cost.test.partition("::")[0]].append(cost)
        by_file["all"].append(cost)
    print(f"{'CPU s':>8} {'own':>8} {'wall s':>8} {'tests':>6}")
    for name, costs in sorted(by_file.items(), key=lambda pair: -sum(c.cpu_s for c in pair[1])):
        total, own, wall = (sum(getattr(c, a) for c in costs) for a in ("cpu_s", "own_cpu_s", "wall_s"))
        print(f"{total:8.1f} {own:8.1f} {wall:8.1f} {len(costs):6} {name}")


if __name__ == "__main__":
    main()
