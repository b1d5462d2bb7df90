"""`nsadiag check` where no call orders what ranks do to a file: the other order is rehearsed too, and healthy jobs agree in both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

BEGIN = """
import fcntl, os, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
path = Path("cache.pt")
"""
END = """
for step in range(3):
    dist.all_reduce(value)
dist.barrier()
dist.destroy_process_group()
"""
BUILDS = """
    tokens = torch.ones(3)
    if rank == 0:
        torch.save(tokens, path)
    dist.all_reduce(tokens.sum())
"""
# Rank 0 has written by the time at which a slower rank looks, or has not.
RACE = "if not path.exists():" + BUILDS + "value = torch.load(path) if rank == 0 else torch.ones(3)\n"
NEWEST = """
folder = Path("saved")
folder.mkdir(exist_ok=True)
dist.barrier()
if rank == 0:
    torch.save(torch.ones(3), folder / "step4.pt")
start = max((int(file.stem[4:]) for file in folder.glob("step*.pt")), default=0)
value = torch.ones(3)
for step in range(start, 8):
    dist.all_reduce(value)
"""
HEALTHY = {
    "a barrier in between": "there = path.exists()\ndist.barrier()\nif not there:" + BUILDS + "value = torch.ones(3)\n",
    "files of their own": "path = Path(f'{rank}.pt')\nif not path.exists(): torch.save(torch.ones(3), path)\nvalue = torch.load(path)\n",
    "polls": """
if rank == 0:
    torch.save(torch.ones(3), "part.pt")
    os.replace("part.pt", path)
while not path.exists():
    time.sleep(0.05)
value = torch.load(path)
""",
    "a store": """
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    torch.save(torch.ones(3), path)
    store.set("ready", "1")
store.wait(["ready"])
value = torch.load(path)
""",
    "a lock": """
with open("lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():
        torch.save(torch.ones(3), path)
    value = torch.load(path)
""",
    "whoever comes first": """
if not path.exists():
    part = Path(f"part-{rank}.pt")
    torch.save(torch.ones(3), part)
    os.replace(part, path)
value = torch.load(path)
""",
    "sleeps": """
if rank == 0:
    torch.save(torch.ones(3), path)
else:
    time.sleep(3)
value = torch.load(path)
""",
}  # fmt: skip


def checked(jobs: Jobs, body: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rehearsal and verdict."""
    script = jobs.directory / "train.py"
    script.write_text(BEGIN + body + END)
    launcher = (str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2")
    jobs.run("check", "--out", "run", "--seconds", "300", "--json", "--", *launcher, script)
    documents = (jobs.directory / "run" / name for name in ("rehearsal.json", "verdict.json"))
    rehearsal, verdict = (json.loads(file.read_text()) for file in documents)
    if not rehearsal["isolation"]["files_apart"]:
        pytest.skip(f"no overlay here: {rehearsal['isolation']}")
    return rehearsal, verdict


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(RACE, "if not path.exists():", id="a cache"),
        pytest.param(NEWEST, 'folder.glob("step*.pt")', id="the newest checkpoint", marks=pytest.mark.slow),
    ],
)
def test_a_race_at_a_file_is_told_with_the_order_that_shows_it(jobs: Jobs, body: str, code: str) -> None:
    rehearsal, verdict = checked(jobs, body)
    assert rehearsal["answer"] == "differs", rehearsal
    assert "before rank" in rehearsal["order"]
    assert code in verdict["because"]["code"]
    assert verdict["because"]["how"] == "recorded"
    assert not list(jobs.directory.glob("run.*")), "the first rehearsal is left behind"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "polls" else pytest.mark.slow) for n in HEALTHY]
)
def test_a_healthy_job_agrees_in_either_order(jobs: Jobs, name: str) -> None:
    rehearsal, _ = checked(jobs, HEALTHY[name])
    assert rehearsal["answer"] == "agreed", rehearsal
    assert not rehearsal["order"]
    assert not list(jobs.directory.glob("run.*")), "the second rehearsal is left behind"
