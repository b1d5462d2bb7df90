"""Loops that ask for a value in shared memory, and what is called after a line."""

from __future__ import annotations

import pytest

from nsadiag.evidence.records import Place
from nsadiag.source.loops import asks_memory, calls_ahead
from nsadiag.source.model import SourceModel

PROGRAM = """
from multiprocessing import Value
from multiprocessing.shared_memory import SharedMemory
import threading, time

stop, flag = threading.Event(), Value("i")

class Ring:
    def __init__(self):
        self.block = SharedMemory(create=True, size=8)
        self.buffer = self.block.buf

    def ask(self):
        while True:
            with self.reader() as row:
                head = self.buffer[0]
                if head:
                    break
            time.sleep(0.1)  # in a ring

    def idle(self):
        while not stop.is_set():
            time.sleep(0.1)  # for a thread

def started():
    while flag.value == 0:
        time.sleep(0.1)  # for a value

def other(items):
    while items[0]:
        time.sleep(0.1)  # for a list
"""


def place(text: str, marked: str) -> Place:
    line = next(n for n, each in enumerate(text.splitlines(), 1) if marked in each)
    return Place(file="job.py", line=line, function=None)


@pytest.mark.parametrize(
    ("marked", "asks"),
    [("# in a ring", True), ("# for a thread", False), ("# for a value", True), ("# for a list", False)],
)
def test_a_loop_asks_memory_where_the_name_comes_of_it(marked: str, asks: bool) -> None:
    assert asks_memory(SourceModel({"job.py": PROGRAM}), place(PROGRAM, marked)) is asks


AHEAD = """
async def answer(path, front):
    if path == "/generate":
        await front.generate()  # here
        front.count()
    elif path == "/resume":
        front.running.set()
    front.finish()

def finish():
    queue.put(1)

def loop():
    while True:
        first()
        second()  # there
        third()
"""


def test_calls_ahead_are_those_that_follow_and_not_of_another_branch() -> None:
    code = SourceModel({"job.py": AHEAD})
    assert calls_ahead(code, place(AHEAD, "# here")) == {"generate", "count", "finish", "put"}
    assert calls_ahead(code, place(AHEAD, "# there")) == {"first", "second", "third"}
