"""Sums of the parameters, taken ever more rarely: a drift is seen before the job is half as long again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from support.jobs import Jobs

from nsadiag.worker.probes.correctness.replicas import is_look

DECAYS_LATE = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(110):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 70 and dist.get_rank() == 1:
        with torch.no_grad():
            model.module[2].weight.mul_(0.999)
dist.barrier()
del model
dist.destroy_process_group()
"""


def test_replicas_that_part_late_are_told(tmp_path: Path, jobs: Jobs) -> None:
    (tmp_path / "decays.py").write_text(DECAYS_LATE)
    jobs.run(
        "run", "--out", tmp_path / "run", "--", "torchrun", "--standalone", "--nproc-per-node=2", "decays.py"
    )
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (verdict["class"], verdict["where"]["step"]) == ("silently_wrong", 96), verdict["summary"]
    # What else writes into parameters tells which of two ranks it is.
    assert verdict["guilty_ranks"] == [1]
    assert any("(rank 1: 24 times more)" in row["claim"] for row in verdict["evidence"])
    looks = [
        json.loads(line)["since"]
        for line in (tmp_path / "run/ranks/00000/replicas.jsonl").read_text().splitlines()
    ]
    # The last one tells of rates alone.
    assert looks == [0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 110]


def test_sums_are_taken_ever_more_rarely_and_never_closer_than_they_were() -> None:
    looks = [n for n in range(1, 2049) if is_look(n)]
    assert looks[:10] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96]
    apart = [after - before for before, after in itertools.pairwise(looks)]
    assert apart == sorted(apart)
    assert all(gap <= before / 4 for before, gap in zip(looks, apart, strict=False) if before >= 256)


OWN_PLATEAU = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
for epoch in range(3):
    for step in range(13):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = 1.0 if dist.get_rank() == 2 else 1.0 / (1 + epoch)
    scheduler.step(error)
dist.destroy_process_group()
"""


def test_a_scheduler_that_follows_each_ranks_own_metric_is_told(tmp_path: Path, jobs: Jobs) -> None:
    (tmp_path / "plateau.py").write_text(OWN_PLATEAU)
    jobs.run(
        "run", "--out", tmp_path / "run", "--", "torchrun", "--standalone", "--nproc-per-node=3", "plateau.py"
    )
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    # No sum was taken since: 32 is the last look of 39 steps.
    assert (verdict["class"], verdict["guilty_ranks"]) == ("silently_wrong", [2]), verdict["summary"]
    assert verdict["where"]["code"] == "scheduler.step(error)"
    assert "rank 2: 0.025" in verdict["summary"]
