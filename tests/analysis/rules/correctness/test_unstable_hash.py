"""Shares by `hash()` of a text: Python salts it in each process, unless it is told not to, or they were forked from one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.findings import findings
from support.jobs import GIVE_UP_S, Jobs
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.correctness.unstable_hash import unstable_hash

HEAD = "class Shards:\n    def __init__(self, rank, world): self.rank, self.world = rank, world\n"
BY_METHOD = HEAD + (
    "    def owner(self, name):\n        return hash(name) % self.world\n"
    "    def mine(self, names):\n        return [n for n in names if self.owner(n) == self.rank]\n"
)
BY_NAME = "def mine(files, rank, world):\n    found = []\n    for f in files:\n        owner = hash(str(f)) % world\n        if owner == rank:\n            found.append(f)\n    return found\n"
AT_ONCE = "import os\nmine = [f for f in os.listdir('.') if hash(f'{f}') % 2 == int(os.environ['RANK'])]\n"
OF_NUMBERS = "def mine(items, rank, world):\n    return [i for i in items if hash(i) % world == rank]\n"
NO_RANK = "def split(names):\n    return [n for n in names if hash(n.lower()) % 10 == 0]\n"
STABLE = "import zlib\ndef mine(names, rank, world):\n    return [n for n in names if zlib.crc32(n.encode()) % world == rank]\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [(BY_METHOD, 4), (BY_NAME, 4), (AT_ONCE, 2), (OF_NUMBERS, None), (NO_RANK, None), (STABLE, None)],
)
def test_a_hash_of_a_text_that_says_whose_it_is(tmp_path: Path, source: str, line: int | None) -> None:
    cell = load_cell(unpack(archive_of("healthy_ddp"), tmp_path).path)
    cell = replace(cell, sources={"/job/data.py": source})
    assert not findings(unstable_hash, Case(cell)), "nobody knows whether the ranks had one salt"
    salted = salted_by(cell, lambda rank: f"{rank:016x}")
    assert [found.where.line for found in findings(unstable_hash, Case(salted)) if found.where] == (
        [line] if line else []
    )
    forked = salted_by(cell, lambda rank: "00")
    assert not findings(unstable_hash, Case(forked)), "forked from one process, or given one PYTHONHASHSEED"


def salted_by(cell: CellEvidence, text_hash: Callable[[int], str]) -> CellEvidence:
    ranks = (replace(r, meta=replace(r.meta, text_hash=text_hash(r.rank))) for r in cell.ranks)
    return replace(cell, ranks=tuple(ranks))


JOB = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mine = [name for name in map(str, range(64)) if hash(name) % world == rank]
for step in range(12):
    optimizer.zero_grad()
    model(torch.tensor([float(mine[step % 4])] * 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("seed", "cls"), [(None, "silently_wrong"), pytest.param("7", "healthy", marks=pytest.mark.slow)]
)
def test_ranks_that_were_started_each_by_itself(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, seed: str | None, cls: str
) -> None:
    if seed:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    else:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (jobs.directory / "job.py").write_text(JOB)
    launch = ("torchrun", "--standalone", "--nproc-per-node", "2", "job.py")
    stdout, stderr = jobs.start("run", "--json", "--out", "run", "--", *launch).communicate(timeout=GIVE_UP_S)
    assert stdout, stderr
    verdict = json.loads(stdout)["verdict"]
    assert verdict["class"] == cls, verdict["summary"]
    if cls != "healthy":
        assert verdict["guilty_ranks"] == [0, 1] and "hash(name) % world" in verdict["where"]["code"]
