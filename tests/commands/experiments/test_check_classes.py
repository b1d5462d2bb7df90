"""The class of a disagreement where only the order of calls and the recorded paths tell it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

HEAD = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
"""
# Rank 1 skips batches by what is in them, so that it comes to the end of as many of them earlier.
SKIPS = """
    class Fit:
        def __init__(self, batches):
            self.batches = batches
            self.model = DDP(torch.nn.Linear(4, 4))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run(self):
            for batch in self.batches:
                if not bool(batch.sum() > 0):
                    continue
                self.optimizer.zero_grad()
                self.model(batch).mean().backward()
                self.optimizer.step()

    batches = [torch.ones(2, 4) for _ in range(12)]
    if rank == 1:
        batches[5] = torch.zeros(2, 4)
    Fit(batches).run()
    dist.barrier()
    dist.destroy_process_group()
"""
# A set of texts has another order in each process.
GROUPS = """
    names = {"encoder", "decoder", "router", "pooler", "embedder", "ranker", "reader", "writer"}
    groups = {}
    for name in names:
        groups[name] = dist.new_group([0, 1])
    for name in sorted(groups):
        dist.all_reduce(torch.ones(3), group=groups[name])
    dist.destroy_process_group()
"""
# Join makes the calls of its models one after the other for the rank that has no more batches.
JOINED = """
    from torch.distributed.algorithms.join import Join

    first, second = DDP(torch.nn.Linear(4, 4)), DDP(torch.nn.Linear(4, 2))
    with Join([first, second]):
        for _ in range(4 + 3 * (rank == 0)):
            second(first(torch.ones(2, 4))).sum().backward()
    dist.destroy_process_group()
"""


def verdict_of(jobs: Jobs, body: str) -> dict[str, Any]:
    script = jobs.directory / "job.py"
    script.write_text(textwrap.dedent(HEAD + body))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2")
    jobs.run("check", "--out", "run", "--seconds", "60", "--", *launcher, script)
    return dict(json.loads(Path(jobs.directory, "run", "verdict.json").read_text()))


@pytest.mark.slow
def test_a_rank_that_is_behind_by_a_branch_has_no_fewer_inputs(jobs: Jobs) -> None:
    verdict = verdict_of(jobs, SKIPS)
    assert (verdict["class"], verdict["guilty_ranks"]) == ("data_divergent_control_flow", [1])
    assert verdict["because"]["code"] == "if not bool(batch.sum() > 0):"


@pytest.mark.slow
def test_groups_that_were_created_in_another_order_are_a_mismatch_of_groups(jobs: Jobs) -> None:
    verdict = verdict_of(jobs, GROUPS)
    assert verdict["class"] == "process_group_mismatch"
    assert verdict["where"]["code"] == "groups[name] = dist.new_group([0, 1])"


@pytest.mark.slow
def test_uneven_inputs_under_join_are_as_intended(jobs: Jobs) -> None:
    verdict = verdict_of(jobs, JOINED)
    assert verdict["class"] == "collective_order_mismatch"
