"""Who keeps an interpreter from ending, where no line of the user's stands on any stack."""

from __future__ import annotations

import json

from support.jobs import Jobs

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
