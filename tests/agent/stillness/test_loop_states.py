"""A loop that nothing ends any more is told by what has a say in its end, whatever else in it changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsadiag.agent.stillness import loop_sampling
from nsadiag.agent.stillness.loop_sampling import Loop, Loops

HEAD = """
import collections
import itertools
import json
import os
import random
import sys
import threading
import time

from nsadiag.worker.introspection import loop_rounds
"""
END = """

def answer():
    for _ in sys.stdin:
        print(json.dumps(loop_rounds.of_main_thread()), flush=True)


threading.Thread(target=answer, daemon=True).start()
loop_rounds.SECONDS, loop_rounds.INTERVAL_S = 0.2, 0.002
print("ready", flush=True)
{call}
"""

SPINNING = {
    "negatives of a user who has seen everything": (
        """
class Negatives:
    def __init__(self, seen):
        self.seen, self.random = seen, random.Random(0)

    def draw(self, count):
        found = []
        while len(found) < count:
            item = self.random.randrange(20)
            if item not in self.seen:
                found.append(item)
        return found
""",
        "Negatives(set(range(20))).draw(2)",
        "while len(found) < count",
    ),
    "windows that overlap in full": (
        """
def windows(tokens, size, overlap):
    sums, start = 0, 0
    while start < len(tokens):
        sums += sum(tokens[start : start + size])
        start += size - overlap
    return sums
""",
        "windows([float(i) for i in range(64)], 8, 8)",
        "while start < len(tokens)",
    ),
    "a parent that leads back": (
        """
class Node:
    def __init__(self, weight):
        self.weight, self.parent = weight, None

def ring(size):
    nodes = [Node(i) for i in range(size)]
    for a, b in zip(nodes, nodes[1:] + nodes[:1]):
        a.parent = b
    return nodes[0]

def depth(node):
    total = 0.0
    while node is not None:
        total += node.weight
        node = node.parent
    return total
""",
        "depth(ring(5))",
        "while node is not None",
    ),
    "a Newton search in nan": (
        """
def search(weights, target):
    power, steps = torch.ones(()), 0
    while True:
        p = weights ** power
        error = (p / p.sum()).max() - target
        steps += 1
        if error.abs() < 1e-3:
            break
        power = power + 0.1 * error
    return power
""",
        "search(torch.tensor([1.0, float('nan')]), 0.5)",
        "while True",
    ),
    "a record that is skipped without moving on": (
        """
class Shard:
    def __init__(self, rows):
        self.rows, self.position, self.skipped = rows, 0, None

    def next(self):
        while True:
            line = self.rows[self.position % len(self.rows)]
            try:
                record = json.loads(line)
                self.position += 1
                return record
            except ValueError as error:
                self.skipped = str(error)
                continue
""",
        "Shard(['{\"x\": 3', '{}']).next()",
        "while True",
    ),
    "needs that need each other": (
        """
def build(needs):
    todo, done = collections.deque(sorted(needs)), set()
    while todo:
        name = todo.popleft()
        if all(each in done for each in needs[name]):
            done.add(name)
        else:
            todo.append(name)
    return done
""",
        "build({'a': ['b'], 'b': ['a'], 'c': []})",
        "while todo",
    ),
    "rows that come round and none is long enough": (
        """
class Samples:
    def __init__(self, rows):
        self.stream = itertools.cycle(rows)

    def longer_than(self, least):
        seen = 0
        for row in self.stream:
            seen += 1
            if len(row) > least:
                return row
""",
        "Samples([[1.0] * n for n in (3, 4, 5)]).longer_than(9)",
        "for row in self.stream",
    ),
    "a flood that a wall holds up": (
        """
def spread(mask, wall):
    rounds = 0
    while not bool((mask | wall).all()):
        mask = (mask | mask.roll(1)) & ~wall
        rounds += 1
    return mask
""",
        "spread(torch.tensor([1, 0, 0, 0]).bool(), torch.tensor([0, 1, 0, 1]).bool())",
        "while not bool((mask | wall).all())",
    ),
    "a class of which there is no row": (
        """
class Balanced:
    def __init__(self, labels):
        self.labels = labels

    def __iter__(self):
        wanted, position = 0, 0
        while True:
            index = position % len(self.labels)
            position += 1
            if self.labels[index] == wanted:
                wanted = (wanted + 1) % 3
                yield index
""",
        "[*zip(range(6), Balanced([0, 1, 0, 1]))]",
        "while True",
    ),
    "passes that always change something": (
        """
def components(links, size):
    labels, changed, passes = list(range(size)), True, 0
    while changed:
        changed = False
        passes += 1
        for a, b in links:
            least = min(labels[a], labels[b])
            if labels[a] != least or a < 0:
                labels[a] = labels[b] = least
                changed = True
    return labels
""",
        "components([(0, 1), (1, 2), (-1, 2)], 3)",
        "while changed",
    ),
}
WORKING = {
    "a draw among very many": (
        SPINNING["negatives of a user who has seen everything"][0].replace(
            "randrange(20)", "randrange(10**9)"
        ),
        "Negatives(range(10**9 - 1)).draw(2)",
    ),
    "an annealing with a slow schedule": (
        """
def anneal(rate):
    temperature, order = 1.0, [3, 1, 2]
    while temperature > 1e-3:
        i, j = random.randrange(3), random.randrange(3)
        order[i], order[j] = order[j], order[i]
        temperature *= rate
    return order
""",
        "anneal(1 - 1e-9)",
    ),
    "a Newton search with a small rate": (
        SPINNING["a Newton search in nan"][0].replace("0.1 * error", "1e-6 * error"),
        "search(torch.tensor([1.0, 9.0]), 0.99)",
    ),
    "labels that are passed on slowly": (
        SPINNING["passes that always change something"][0].replace("a < 0", "False"),
        "components([(i, i + 1) for i in reversed(range(20_000))], 20_001)",
    ),
    "an object that answers in the end": (
        """
class Service:
    def __init__(self): self.inner = [Part()]
    def fetch(self):
        if self.inner[0].ask(): return 1
        raise ConnectionError("busy")

class Part:
    def __init__(self): self.deep = {"asked": [0, object()]}
    def ask(self):
        self.deep["asked"][0] += 1
        return self.deep["asked"][0] > 10**9

def fetch(service):
    while True:
        try:
            return service.fetch()
        except ConnectionError:
            sum(range(20))
""",
        "fetch(Service())",
    ),
    "a file that may come": (
        """
def wait(path):
    while not os.path.exists(path):
        sum(range(20))
    return path
""",
        "wait('/nowhere/at/all')",
    ),
    "a flag that another thread may set": (
        """
def wait(flag):
    while not flag.is_set():
        sum(range(20))
    return flag
""",
        "wait(threading.Event())",
    ),
    "a clock": (
        """
def wait(until):
    value = 0
    while time.time() < until:
        value = (value + 1) % 3
    return value
""",
        "wait(1e12)",
    ),
    "a search over a stack": (
        """
def count(size):
    found, stack = 0, [(0, 0, 0, 0)]
    while stack:
        row, columns, left, right = stack.pop()
        if row == size:
            found += 1
            continue
        for column in range(size):
            bit = 1 << column
            if not (columns | left | right) & bit:
                stack.append((row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1))
    return found
""",
        "count(14)",
    ),
    "rounds within a loop that ends": (
        """
def draw(limit):
    made = []
    while len(made) < 3:
        made.append(random.randrange(limit))
    return made

def rounds(users):
    total = 0
    for user in range(users):
        total += sum(draw(2)) * 0
    return total
""",
        "rounds(10**9)",
    ),
    "a generator that moves on inside": (
        """
def steps(most):
    done = 0
    while done < most:
        done += 1
        yield done == most

def wait(stream):
    while not next(stream):
        pass
""",
        "wait(steps(10**9))",
    ),
}


@contextmanager
def running(tmp_path: Path, body: str, call: str) -> Iterator[tuple[int, Callable[[], Any]]]:
    """The process that is in the loop, and what asks it."""
    script = tmp_path / "job.py"
    script.write_text(
        HEAD + ("import torch\n" if "torch" in body + call else "") + body + END.format(call=call)
    )
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask() -> Any:
            stdin.write("\n")
            stdin.flush()
            return json.loads(stdout.readline())

        try:
            assert stdout.readline() == "ready\n"
            yield process.pid, ask
        finally:
            process.kill()


LONG_S = 0.5  # of answers that take 0.2 s


def looked_at(
    tmp_path: Path, body: str, call: str, monkeypatch: pytest.MonkeyPatch, looks: int
) -> Loop | None:
    """The loop by the last of some looks; none more once it stays: rare values are chance."""
    monkeypatch.setattr(loop_sampling, "INTERVAL_S", 0.0)
    loops, found = Loops(), None
    with running(tmp_path, body, call) as (pid, ask):
        for _ in range(looks):
            if found is not None and found.stays_s > LONG_S:
                break
            loops.begin()
            for _ in range(10):
                loops.sample({0: pid})
            found = loops.staying(0, None, ask)
    return found


@pytest.mark.parametrize(("body", "call", "loop"), SPINNING.values(), ids=SPINNING)
def test_a_loop_that_nothing_ends_is_told(
    body: str, call: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked_at(tmp_path, body, call, monkeypatch, 30)
    assert found is not None
    assert (found.text, found.changes) == (loop, [])
    assert found.stays_s > LONG_S


@pytest.mark.parametrize(("body", "call"), WORKING.values(), ids=WORKING)
def test_a_loop_that_may_end_is_never_told(
    body: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked_at(tmp_path, body, call, monkeypatch, 5)
    assert found is None or found.stays_s < LONG_S
