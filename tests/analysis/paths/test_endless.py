"""Loops that a rank does not leave, by the paths of all ranks: which are endless, and which get on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.recorded_paths import walks

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
NEVER = f"{HEAD}best, length = float('inf'), 2.0\nwhile not (best < 1.0 - 0.1 * length):\n    best, length = float('nan'), length * 0.5\n{TAKEN}"
LARGEST = NEVER.replace("float('nan')", "float('inf')")
CALLS = f"{HEAD}def loss(x): return x * x\nstart, step = float('nan'), 1.0\nwhile not loss(step) <= start + 0.1 * step:\n    step *= 0.5\n{TAKEN}"
TENSORS = f"{HEAD}import torch\nlow, high = torch.tensor(1.0), torch.tensor(2.0)\nwhile high - low > 0.5:\n    low = low.clone()\n{TAKEN}"
COUNT = f"{HEAD}from itertools import count\npicked = None\nfor n in count():\n    if picked is not None: break\n{TAKEN}"
RETRY = f"{HEAD}text = 'x'\nwhile True:\n    take()\n    try:\n        number = int(text)\n        break\n    except ValueError:\n        pass\n"
EMPTY = (
    f"{HEAD}shard = []\ndef alarm(*_): die()\nimport signal\nsignal.signal(signal.SIGALRM, alarm); signal.alarm(1)\n"
    "def feed():\n    while True:\n        for item in shard:\n            yield item\nnext(feed())\n"
)
FILE = f"{HEAD}path = '/nobody/writes/this'\nwhile not os.path.exists(path):\n{TAKEN}"
HIDDEN = f"{HEAD}class Solver: pass\nsolver = [Solver()]\nwhile solver[0] is not None:\n{TAKEN}"
CONTENT = f"{HEAD}found = set(range(9))\nwhile 5 in found:\n{TAKEN}"
NEXT = f"{HEAD}ones = iter([1] * 5000)\ntry:\n    while True:\n        one = next(ones)\n        take()\nexcept StopIteration: pass\n"
CONNECT = f"{HEAD}def connect(): raise OSError\nwhile True:\n    take()\n    try:\n        connect()\n        break\n    except OSError:\n        pass\n"
READS = f"{HEAD}lines = iter(range(5000))\nwhile True:\n    line = next(lines)\n    if line is None: break\n{TAKEN}"


def found(folder: Path, source: str) -> list[Endless]:
    return list(endless_loops(SourceModel({}), {walk.rank: walk for walk in walks(folder, source)}))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (QUEUE, "while queue and room > 0:"),
        (AWAY, "while low > 3:"),
        (NEVER, "while not (best < 1.0 - 0.1 * length):"),
        (LARGEST, "while not (best < 1.0 - 0.1 * length):"),
        (CALLS, "while not loss(step) <= start + 0.1 * step:"),
        (TENSORS, "while high - low > 0.5:"),
        (COUNT, "for n in count():"),
        (RETRY, "while True:"),
        (EMPTY, "    while True:"),
    ],
    ids=[
        "nothing changes",
        "away from its bound",
        "compares nan",
        "compares inf",
        "compares a call with nan",
        "tensors that stay",
        "counts for ever",
        "raises again and again",
        "finds nothing",
    ],
)
def test_a_loop_that_gets_no_nearer_to_its_end_is_endless(tmp_path: Path, source: str, line: str) -> None:
    (loop,) = found(tmp_path, source)
    assert (loop.rank, loop.waiting) == (1, (0,))
    assert source.splitlines()[loop.place.line - 1] == line
    assert loop.iterations >= 600


@pytest.mark.parametrize(
    "source",
    [COUNTS, DRAINS, READS, FILE, HIDDEN, CONTENT, NEXT, CONNECT],
    ids=[
        "counts",
        "drains a queue",
        "reads lines",
        "asks for a file",
        "asks an object",
        "asks what a set holds",
        "takes the next",
        "connects",
    ],
)
def test_a_long_loop_that_gets_on_is_not(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, source) == []


def test_the_values_that_keep_it_in_are_named(tmp_path: Path) -> None:
    (loop,) = found(tmp_path, QUEUE)
    assert "`room` was 3" in loop.words and "`queue` was list ['long']" in loop.words


def test_ranks_that_are_all_in_such_a_loop_need_nobody_who_waits(tmp_path: Path) -> None:
    source = QUEUE.replace('call("barrier"); os.kill(os.getpid(), 9)', "pass")
    assert [loop.rank for loop in found(tmp_path, source)] == [0, 1]
    one_of_them = QUEUE.replace('call("barrier"); os.kill(os.getpid(), 9)', "die()")
    assert found(tmp_path, one_of_them) == []


def test_a_peer_waits_also_where_its_line_called_a_function_before(tmp_path: Path) -> None:
    source = QUEUE.replace('call("barrier");', 'call(str.join("", [name()]));').replace(
        "def die():", "def name():\n    return 'barrier'\ndef die():"
    )
    (loop,) = found(tmp_path, source)
    assert loop.waiting == (0,)
