"""What a thread is about on whose stack no line of the user's stands: it keeps an interpreter from ending, or issues collectives."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.jobs import Jobs

from nsadiag.analysis.rules.desync.issuing_threads import starter_of

# A thread of the user's own beside it is a daemon, which nobody waits for.
FEEDER = """
import multiprocessing, threading
import torch

def idle():
    threading.Event().wait()

def read(queue):
    queue.get()

def main():
    threading.Thread(target=idle, daemon=True).start()
    context = multiprocessing.get_context("fork")
    queue, small = context.Queue(), context.Queue()
    reader = context.Process(target=read, args=(queue,), daemon=True)
    reader.start()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    small.put("read by nobody, and short enough")
    queue.put("the last")
    reader.join()
    queue.put(bytes(1 << 20))

main()
"""


def test_a_feeder_that_cannot_write_is_told_by_the_put_that_started_it(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(FEEDER)
    done = jobs.run("run", "--out", "run", "--stall-after", "2", "--", "python", "train.py", seconds=90)
    path = jobs.directory / "run/verdict.json"
    assert path.exists(), done.stderr
    verdict = json.loads(path.read_text())
    assert (verdict["class"], verdict["guilty_ranks"]) == ("teardown_hang", [0]), verdict["summary"]
    assert verdict["where"]["code"] == 'queue.put("the last")'
    assert "cancel_join_thread" in verdict["fix"]


SAVES, TRAINS = "/u/train.py:60:maybe_save", "/u/train.py:45:forward"
MAIN, SAVER = 11, 12


@pytest.mark.parametrize(
    ("calls", "tid", "named"),
    [
        # Nothing of the user's stands on the stack of a library's thread.
        ([(MAIN, TRAINS), (SAVER, "")], SAVER, "maybe_save"),
        # The user's own function runs in it, and shows which call it is.
        ([(MAIN, TRAINS), (SAVER, ""), (SAVER, "/u/train.py:70:report")], SAVER, None),
        ([(MAIN, TRAINS), (SAVER, "")], SAVER + 1, None),
        ([(MAIN, ""), (MAIN, TRAINS)], MAIN, None),
    ],
)
def test_a_librarys_thread_is_told_by_the_line_that_had_it_started(
    calls: list[tuple[int, str]], tid: int, named: str | None
) -> None:
    rank = SimpleNamespace(
        rank=0,
        source="ranks/00000",
        recording=SimpleNamespace(header=SimpleNamespace(pid=MAIN)),
        threads=[SimpleNamespace(tid=tid, name="Saver_0", place=SAVES, step=20)],
    )
    rows = [{"rank": 0, "group": "default_pg", "thread": t, "op": "gather", "place": at} for t, at in calls]
    cell: Any = SimpleNamespace(rank=lambda _: rank)
    case: Any = SimpleNamespace(cell=cell, asked=pd.DataFrame(rows))
    found = starter_of(case, "default_pg", [0])
    assert (found.place.function if found else None) == named
    assert starter_of(case, "another", [0]) is None
