"""A loop whose time goes into one quick call shows one line in every look, as a call that never returns does."""

import json
from textwrap import dedent

import pytest
from support.jobs import Jobs

# `sorted` takes nearly all of the time of a round, and keeps the interpreter lock while it does.
SPINS = """
    import os, random
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def another(taken, shuffled):
        chosen = 0
        while chosen in taken:
            chosen = sorted(shuffled)[0] + random.randrange(40)
        return chosen

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(4, 1))
    shuffled = random.Random(0).sample(range(200_000), 200_000)
    for step in range(20):
        taken = set(range(40 if (rank, step) == (1, 12) else 3))
        model(torch.full((2, 4), float(another(taken, shuffled[: 100 if step < 12 else 200_000])))).sum().backward()
"""


@pytest.mark.slow
def test_a_loop_around_one_call_is_not_that_call(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(dedent(SPINS))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2")
    jobs.run("run", "--out", "run", "--timeout", "60", "--", *launcher, "train.py")
    verdict = json.loads((jobs.directory / "run" / "verdict.json").read_text())
    assert (verdict["class"], verdict["guilty_ranks"]) == ("livelock_user_code", [1]), verdict["summary"]
    assert verdict["where"]["code"] == "chosen = sorted(shuffled)[0] + random.randrange(40)"
    looks = (jobs.directory / "run" / "ranks" / "00001").glob("captures/*/answers.json")
    told = [json.loads(look.read_text())["sources"].get("python", {}) for look in looks]
    assert any(one.get("answered") for one in told)
