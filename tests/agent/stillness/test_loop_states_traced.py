"""A loop whose rounds are followed line by line: once all that has a say in its end is what it had been, nothing ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_loop_states import HEAD, SPINNING, WORKING

from nsadiag.agent.stillness.loop_states import LoopStates, Stays, told_by

TRACED = """
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.rehearsal.paths import recorder
from pathlib import Path

directory = RunDir(path=Path(sys.argv[1])).rank(0)
for each in (directory.path.parent.parent, directory.path.parent, directory.path):
    make_private_dir(each)
recorder.start(Recorder(directory, 0, 1))


def answer():
    for _ in sys.stdin:
        print(json.dumps(loop_rounds.of_main_thread()), flush=True)


threading.Thread(target=answer, daemon=True, name="nsadiag-answer").start()
print("ready", flush=True)
{call}
"""

# An iterator, a generator of random numbers and a remainder have a say that nobody sees.
UNSEEN = ("negatives", "rows that come round", "a class of which")
RECURRING = {name: case for name, case in SPINNING.items() if not name.startswith(UNSEEN)}
GETTING_ON = {
    **WORKING,
    **{name: (body, call) for name, (body, call, _) in SPINNING.items() if name.startswith(UNSEEN)},
    "a place whose remainder alone is asked": (
        """
def find(rows, wanted):
    place = 0
    while rows[place % len(rows)] != wanted:
        place += 1
    return place
""",
        "find([0] * 50, 1)",
    ),
    "a global that a function counts": (
        """
asked = 0

def is_ready():
    global asked
    asked += 1
    return asked > 10**9

def wait():
    while not is_ready():
        pass
""",
        "wait()",
    ),
    "lines of a file that are alike": (
        """
def find(file):
    while True:
        line = file.readline()
        if line == "x":
            return line

def blank():
    file = open(sys.argv[0] + ".txt", "w+")
    file.write("\\n" * 10**6)
    file.seek(0)
    return file
""",
        "find(blank())",
    ),
    "a place that is kept in a slot": (
        """
class Place:
    __slots__ = ("number",)
    def __init__(self): self.number = 0

class Cursor(Place):
    def __init__(self):
        super().__init__()
        self.name = "cursor"
    def is_done(self):
        self.number += 1
        return self.number > 10**9

def wait(cursor):
    while not cursor.is_done():
        pass
""",
        "wait(Cursor())",
    ),
    "an odometer": (
        """
def count(digits):
    while digits[-1] < 9:
        place = 0
        while digits[place] == 9:
            digits[place] = 0
            place += 1
        digits[place] += 1
    return digits
""",
        "count([0] * 9)",
    ),
    "a flag that a handler sets": (
        """
import signal
stopped = False

def stop(*_):
    global stopped
    stopped = True

def wait():
    while not stopped:
        sum(range(20))

signal.signal(signal.SIGTERM, stop)
""",
        "wait()",
    ),
    "a list that a thread fills": (
        """
found = []

def wait():
    while not found:
        sum(range(20))

threading.Thread(target=lambda: (time.sleep(100), found.append(1)), daemon=True).start()
""",
        "wait()",
    ),
    "a tensor that another process holds as well": (
        """
def wait(flag):
    while flag.item() == 0:
        sum(range(20))

""",
        "wait(torch.zeros(1).share_memory_())",
    ),
}


def followed(tmp_path: Path, body: str, call: str, *, answers: int) -> Stays | None:
    """The loop by the answers of a process whose lines are traced."""
    script = tmp_path / "job.py"
    script.write_text(
        HEAD + ("import torch\n" if "torch" in body + call else "") + body + TRACED.format(call=call)
    )
    states, found = LoopStates(), None
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(answers):
                process.stdin.write("\n")
                process.stdin.flush()
                told: Any = told_by(json.loads(process.stdout.readline()))
                found = states.of(0, told, [])
                if found is not None and found.recurs:
                    break
        finally:
            process.kill()
    return found


@pytest.mark.parametrize(("body", "call", "loop"), RECURRING.values(), ids=RECURRING)
def test_an_answer_tells_a_loop_that_comes_back_to_where_it_was(
    body: str, call: str, loop: str, tmp_path: Path
) -> None:
    # The first may still show what leads into the loop.
    found = followed(tmp_path, body, call, answers=20)
    assert found is not None
    assert found.text == loop
    assert found.recurs > 0


@pytest.mark.parametrize(("body", "call"), GETTING_ON.values(), ids=GETTING_ON)
def test_nothing_is_proven_of_a_loop_in_which_something_else_may_have_a_say(
    body: str, call: str, tmp_path: Path
) -> None:
    found = followed(tmp_path, body, call, answers=2)
    assert found is None or found.recurs == 0
