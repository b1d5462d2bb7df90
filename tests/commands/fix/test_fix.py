"""`nsadiag fix`: a repair is proven, wrong patches that agree are not called fixed, and the user's files stay as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.commands.fix.rehearsals import Trials
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job
from nsadiag.repair.judgement import Bench

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = list(torch.randn(5 - rank, 8, 4))
for batch in loader:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    print(f"rank {rank}: loss {loss.item():.4f}", flush=True)
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.barrier()
"""
RIGHT = "shortest = torch.tensor(len(loader)); dist.all_reduce(shortest, op=dist.ReduceOp.MIN)\nfor batch in loader[: shortest.item()]:"
REPAIRED = SCRIPT.replace("for batch in loader:", RIGHT)
COST = "batches that only some ranks have are left out"
PLANTED = {
    "hangs elsewhere": ("dist.barrier()", "if rank == 0:\n    dist.barrier()"),
    "loses steps": ("[: shortest.item()]", "[:1]"),
    "doubles a step": ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n"),
    "writes on all ranks": ("if rank == 0:\n    torch.save", "if rank >= 0:\n    torch.save"),
    "writes nothing": ("if rank == 0:\n    torch.save", "if rank < 0:\n    torch.save"),
    "trains at another rate": ("lr=0.1", "lr=0.05"),
    "trains on other data": ("torch.manual_seed(0)", "torch.manual_seed(1)"),
    "does not share gradients": ("        dist.all_reduce(parameter.grad)", "        pass"),
    "swallows the error": ("dist.barrier()", "try:\n    dist.barrier()\nexcept RuntimeError:\n    pass"),
    "sleeps": ("dist.barrier()", "time.sleep(2)\ndist.barrier()"),
    "leaves early": ("    optimizer.zero_grad()\n", "    if not loss:\n        break\n    optimizer.zero_grad()\n"),
    "prints nothing": ("    print(", "    str("),
    "has no barrier": ("dist.barrier()", "dist.get_rank()"),
    "is not finite": ("loss.backward()", "(loss / 0).backward()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The job without a patch is rehearsed once for all tests."""
    folder = tmp_path_factory.mktemp("job").resolve()
    (folder / "train.py").write_text(SCRIPT)
    job = Job(command=(*TORCHRUN, "train.py"), cwd=folder, folder=folder, ranks=2)
    trials = Trials(job=job, seconds=300)
    return Bench(rehearse=trials.rehearse, launch=trials.launch, ranks=2)


@pytest.mark.slow
def test_a_right_patch_is_fixed(bench: Bench) -> None:
    judgement = bench.proven(bench.sketched(Change.of({"train.py": SCRIPT}, {"train.py": REPAIRED}), COST))
    assert (judgement.level, judgement.reason) == ("fixed", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_patch_is_not_called_fixed(bench: Bench, name: str) -> None:
    old, new = PLANTED[name]
    assert old in REPAIRED
    sketch = bench.sketched(Change.of({"train.py": SCRIPT}, {"train.py": REPAIRED.replace(old, new)}), COST)
    assert not sketch.is_promising or bench.proven(sketch).level != "fixed"


@pytest.mark.slow
@pytest.mark.timeout(3600)  # some twenty launches
def test_a_failed_run_is_repaired_and_its_sources_are_left_alone(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    jobs.run("check", "--out", "run", "--", *TORCHRUN, script)
    done = jobs.run("fix", "run", "--seconds", "300", "--budget", "3000", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["result"]) == (0, "fixed"), document
    assert all(row["met"] for row in document["patch"]["proof"])
    assert script.read_text() == SCRIPT


def test_a_directory_without_a_verdict_is_refused(jobs: Jobs) -> None:
    (jobs.directory / "empty").mkdir()
    done = jobs.run("fix", "empty")
    assert done.returncode == 2
    assert "no verdict.json in empty" in done.stderr
