"""Loops that a rank does not leave, by the paths of all ranks: which are endless, and which get on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recorded_paths import walks

from nsadiag.analysis.paths.endless import Endless, endless_loops
from nsadiag.source.model import SourceModel

HEAD = """import os
rank = int(os.environ["RANK"])
def die():
    os.kill(os.getpid(), 9)
call("all_reduce")
if rank == 0:
    call("barrier"); os.kill(os.getpid(), 9)
def take(count=[0]):
    count[0] += 1
    if count[0] == 1000: die()
"""
# The end of the rehearsal, which finds the rank in its loop.
TAKEN = "    take()\n"
QUEUE = f"{HEAD}queue, room = ['long'], 3\nwhile queue and room > 0:\n    queue.append(queue.pop())\n{TAKEN}"
AWAY = f"{HEAD}low = 5\nwhile low > 3:\n    low += 1\n{TAKEN}"
COUNTS = f"{HEAD}n = 0\nwhile n < 10_000:\n    n += 1\n{TAKEN}"
DRAINS = f"{HEAD}queue = list(range(5000))\nwhile queue:\n    queue.pop()\n{TAKEN}"
READS = f"{HEAD}lines = iter(range(5000))\nwhile True:\n    line = next(lines)\n    if line is None: break\n{TAKEN}"


def found(folder: Path, source: str) -> list[Endless]:
    return list(endless_loops(SourceModel({}), {walk.rank: walk for walk in walks(folder, source)}))


@pytest.mark.parametrize(
    ("source", "line"),
    [(QUEUE, "while queue and room > 0:"), (AWAY, "while low > 3:")],
    ids=["nothing changes", "away from its bound"],
)
def test_a_loop_that_gets_no_nearer_to_its_end_is_endless(tmp_path: Path, source: str, line: str) -> None:
    (loop,) = found(tmp_path, source)
    assert (loop.rank, loop.waiting) == (1, (0,))
    assert source.splitlines()[loop.place.line - 1] == line
    assert loop.iterations >= 900


@pytest.mark.parametrize("source", [COUNTS, DRAINS, READS], ids=["counts", "drains a queue", "reads lines"])
def test_a_long_loop_that_gets_on_is_not(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, source) == []


def test_the_values_that_keep_it_in_are_named(tmp_path: Path) -> None:
    (loop,) = found(tmp_path, QUEUE)
    assert "`room` was 3" in loop.words and "`queue` was list ['long']" in loop.words
