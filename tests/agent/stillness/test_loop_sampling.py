"""A loop of Python that goes round is told from one that gets somewhere by the values of its variables."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsadiag.agent.stillness import loop_sampling
from nsadiag.agent.stillness.loop_sampling import Loop, Loops
from nsadiag.source.loop_exits import loop_around

SPINNING = {
    "a flag": "while not flag.is_set():\n    pass",
    "a put back": "while used < 4 and waiting:\n    item = waiting.popleft()\n    waiting.append(item)",
    "a bisection": "while low < high:\n    middle = (low + high) // 2\n    low = middle",
    "two values in turn": "while first != 9:\n    first, second = second, first\n    last = first + second",
    "an empty queue": "while True:\n    try:\n        items.get_nowait()\n        break\n    except queue.Empty:\n        continue",
    "nothing at all": "while True:\n    pass",
    "a short list time and again": "while len(found) < 2:\n    for item in (1, 2, 3):\n        if item > 4:\n            found.append(item)",
}
WORKING = {
    "a count": "while flag is not None:\n    low += 1\n    high = low * 2",
    "a list that grows": "while len(found) < 10**9:\n    found.append(low)\n    low = low ^ 1",
    "a long range": "for item in range(10**12):\n    low = item % 7",
    "an object's own state": "box = Box()\nwhile not box.full():\n    box.add()",
    "rounds that converge": "while not done:\n    shift = shift * 0.999999 + 1e-9\n    total = shift + 1",
}
SET_UP = """
    import collections, queue, threading
    items = queue.Queue()
    flag, waiting, found = threading.Event(), collections.deque([7]), []
    low, high, first, second, used, shift, done = 1, 2, 3, 4, 0, 1.0, False
    print("ready", flush=True)
"""
BOX = """
class Box:
    def __init__(self): self.held = 0
    def full(self): return self.held > 10**12
    def add(self): self.held += 1

"""


@contextmanager
def running(tmp_path: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "job.py"
    inside = textwrap.dedent(SET_UP) + body
    script.write_text(BOX + "def work():\n" + textwrap.indent(inside, "    ") + "\n\nwork()\n")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def some_looks(
    pid: int, monkeypatch: pytest.MonkeyPatch, enough: Callable[[Loop | None], bool]
) -> Loop | None:
    """The last of three looks; of more, until it shows enough: seven samples are chance, and a rank is looked at for long."""
    monkeypatch.setattr(loop_sampling, "INTERVAL_S", 0.0)
    loops, found = Loops(), None
    for number in range(30):
        if number >= 3 and enough(found):
            break
        loops.begin()
        for _ in range(7):
            loops.sample({1: pid})
            time.sleep(0.01)
        found = loops.of(1)
    return found


@pytest.mark.parametrize("body", SPINNING.values(), ids=SPINNING)
def test_a_loop_that_goes_round_shows_no_new_value(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, body) as process:
        loop = some_looks(process.pid, monkeypatch, lambda found: found is not None)
    assert loop is not None
    assert loop.changes == []
    assert (loop.function, Path(loop.file).name) == ("work", "job.py")


@pytest.mark.parametrize("body", WORKING.values(), ids=WORKING)
def test_a_loop_that_gets_somewhere_is_never_endless(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, body) as process:
        loop = some_looks(
            process.pid, monkeypatch, lambda found: found is None or bool(found.changes or found.hidden)
        )
    assert loop is None or loop.changes != [] or loop.hidden
    assert loop is None or not dataclasses.replace(loop, seconds=1e6).is_endless(longest_pause_s=0.0)


DRAWS = "import random\nclass Size: k = 2\ndef draw(start):\n    found = []\n    while len(found) < Size.k:\n        item = random.randrange(10**9) + start\n        if item {test}:\n            found.append(1)\n"


@pytest.mark.parametrize(
    ("test", "call", "in_vain"),
    [
        ("< 0", "draw(2)", True),
        # The same values in call after call, of a caller that gets somewhere.
        ("% 10**5 == 0", "while True:\n    low += 1\n    draw(2)", False),
        ("% 10**5 == 0", "for low in range(10**9):\n    draw(low)", False),
    ],
)
def test_a_loop_that_draws_and_rejects_asks_in_vain_for_as_long_as_its_call_lasts(
    test: str, call: str, in_vain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(found: Loop | None) -> bool:
        # In a look at a process that got no CPU nothing changes at all.
        vain = found is not None and found.asks_in_vain_s > 0
        return vain == in_vain and (not in_vain or bool(found and found.changes))

    with running(tmp_path, DRAWS.format(test=test) + call) as process:
        loop = some_looks(process.pid, monkeypatch, enough)
    assert loop is None or (loop.asks_in_vain_s > 0) == in_vain
    if in_vain:
        assert loop is not None
        assert (loop.function.rpartition(".")[2], loop.asks, loop.changes) == ("draw", ["found"], ["item"])


@pytest.mark.parametrize(
    "body",
    [
        "started = low\nwhile time.monotonic() - started < 60:\n    pass",
        "while not deadline_passed():\n    pass",
        "low = sum(range(10**12))",
        "while True:\n    low = max(range(10**12))",
    ],
    ids=["a clock", "a clock by name", "no loop", "one long call"],
)
def test_what_ends_by_the_clock_or_is_one_call_is_no_loop(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = "import time\ndef deadline_passed():\n    return time.monotonic() > 1e12\n"
    with running(tmp_path, helper + body) as process:
        assert some_looks(process.pid, monkeypatch, lambda found: found is None) is None


def loop_of(**more: object) -> Loop:
    fields = {"file": "a.py", "function": "f", "line": 1, "lines": [1], "stacks": 2, "samples": 10}
    return Loop(**{**fields, "changes": [], "decided": False, "seconds": 21.0, **more})  # type: ignore[arg-type]


def test_a_loop_must_have_gone_round_for_long_by_the_jobs_own_rhythm() -> None:
    assert loop_of().is_endless(longest_pause_s=1.0)
    assert not loop_of().is_endless(longest_pause_s=5.0)
    assert not loop_of(seconds=19.0).is_endless(longest_pause_s=0.0)
    assert not loop_of(changes=["low"]).is_endless(longest_pause_s=0.0)
    assert loop_of(decided=True, seconds=9.0).is_endless(longest_pause_s=1.0)
    # The rank itself has told that it gets on, or that it came back to where it was.
    assert not loop_of(stays=["service"], stays_s=0.1, seconds=1e6).is_endless(longest_pause_s=0.0)
    assert loop_of(stays=["queue"], recurs=20, seconds=0.0).is_endless(longest_pause_s=9.0)


def test_numbers_that_are_compared_decide_and_flags_and_objects_do_not(tmp_path: Path) -> None:
    script = tmp_path / "loops.py"
    script.write_text(
        "def f():\n"
        "    while low < high:\n"
        "        if len(found) > low:\n"
        "            break\n"
        "    while not done:\n"
        "        step()\n"
        "    while self.low < high:\n"
        "        step()\n"
    )
    decided = [loop_around(str(script), "f", {line}) for line in (3, 6, 8)]
    assert [loop.decided_by if loop else "none" for loop in decided] == [
        frozenset({"low", "high", "found"}),
        None,
        None,
    ]
