"""A process that raises before anybody knows which rank it is."""

from __future__ import annotations

import json
import socket

import pytest
from support.jobs import Jobs

BREAKS = """
import os, signal, subprocess, sys
import torch, torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    if rank == 1 and HOW != "helper":
        raise ValueError("no such shard: 7")
    if HOW == "alone":  # and ended by its parent before it has begun to join
        signal.pause()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:PORT", rank=rank, world_size=2)

def helper():
    raise ValueError("nothing to index")

HOW = os.environ["HOW"]
if len(sys.argv) > 1:
    work(int(sys.argv[1]))
elif HOW in ("spawn", "alone"):
    if __name__ == "__main__":
        mp.spawn(work, nprocs=2)
elif HOW == "helper":
    if __name__ == "__main__":
        for child in (mp.Process(target=helper), mp.Process(target=work, args=(0,))):
            child.start()
            child.join()
else:
    for each in [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in (0, 1)]:
        each.wait()
"""


@pytest.mark.parametrize(
    ("how", "cls", "code"),
    [
        pytest.param(
            "spawn", "rank_exception", 'raise ValueError("no such shard: 7")', marks=pytest.mark.slow
        ),
        ("alone", "rank_exception", 'raise ValueError("no such shard: 7")'),
        pytest.param(
            "started", "rank_exception", 'raise ValueError("no such shard: 7")', marks=pytest.mark.slow
        ),
        pytest.param("helper", "rendezvous_mismatch", "dist.init_process_group(", marks=pytest.mark.slow),
    ],
)
def test_an_exception_before_the_group_is_the_cause_where_others_wait_for_who_raised_it(
    jobs: Jobs, how: str, cls: str, code: str
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (jobs.directory / "train.py").write_text(BREAKS.replace("PORT", str(port)))
    options = ("--out", "run", "--stall-after", "2")
    done = jobs.run("run", *options, "--", "python", "train.py", env={"HOW": how})
    path = jobs.directory / "run/verdict.json"
    assert path.exists(), done.stderr
    verdict = json.loads(path.read_text())
    assert (verdict["class"], verdict["guilty_ranks"]) == (cls, [1]), verdict["summary"]
    assert code in verdict["where"]["code"]
