"""`nsadiag fix`: a repair is proven, wrong patches that agree are not called fixed, and the user's files stay as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.commands.fix.rehearsals import trials_of
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job
from nsadiag.repair.judgement import Bench
from nsadiag.repair.templates.data import loops_end_together
from nsadiag.repair.text import Module

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = list(torch.randn(5 - rank, 8, 4, generator=torch.Generator().manual_seed(rank)))
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
OTHERS = "; others = [loader]; dist.broadcast_object_list(others, src=0); loader = others[0]"
GRADIENT = "        dist.all_reduce(parameter.grad)"
# Each makes of a right patch a wrong one.
PLANTED = {
    "hangs elsewhere": ("dist.barrier()", "if rank == 0:\n    dist.barrier()"),
    "hangs in the step": (GRADIENT, "        if rank == 0:\n            dist.all_reduce(parameter.grad)"),
    "loses steps": ("[: shortest.item()]", "[:1]"),
    "loses the last step": ("[: shortest.item()]", "[: shortest.item() - 1]"),
    "doubles a step": ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n"),
    "doubles a step on one rank": ("    optimizer.step()\n", "    optimizer.step()\n    rank or optimizer.step()\n"),
    "writes on all ranks": ("if rank == 0:\n    torch.save", "if rank >= 0:\n    torch.save"),
    "writes nothing": ("if rank == 0:\n    torch.save", "if rank < 0:\n    torch.save"),
    "writes another file": ('"model.pt"', 'f"model{rank}.pt"'),
    "trains at another rate": ("lr=0.1", "lr=0.05"),
    "trains with momentum": ("lr=0.1", "lr=0.1, momentum=0.9"),
    "trains on other data": (".manual_seed(rank)", ".manual_seed(rank + 7)"),
    "trains on rank 0's data": (".manual_seed(rank)))", ".manual_seed(rank)))" + OTHERS),
    "is rank 0 everywhere": ("rank = dist.get_rank()", "rank = 0"),
    "begins with other weights": ("torch.manual_seed(0)", "torch.manual_seed(1)"),
    "does not share gradients": (GRADIENT, "        pass"),
    "shares a copy": (GRADIENT, "        dist.all_reduce(parameter.grad.clone())"),
    "shares nothing": (GRADIENT, "        dist.all_reduce(parameter.grad.zero_())"),
    "halves the gradients": (GRADIENT, f"{GRADIENT}\n        parameter.grad /= 2"),
    "keeps the gradients": ("    optimizer.zero_grad()\n", ""),
    "detaches": ("model(batch).square()", "(model(batch) * model(batch).detach())"),
    "lowers the world size": ('("gloo")', '("gloo", rank=0, world_size=1, store=dist.HashStore())'),
    "is alone in its group": ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, group=alone)"),
    "calls nothing": ("rank = dist.get_rank()", "rank = dist.get_rank(); dist.all_reduce = lambda *a, **k: None"),
    "swallows the error": ("dist.barrier()", "try:\n    dist.barrier()\nexcept RuntimeError:\n    pass"),
    "sleeps": ("dist.barrier()", "time.sleep(2)\ndist.barrier()"),
    "sleeps in other words": ("dist.barrier()", "__import__('threading').Event().wait(1)\ndist.barrier()"),
    "leaves early": ("    optimizer.zero_grad()\n", "    if not loss:\n        break\n    optimizer.zero_grad()\n"),
    "leaves before the barrier": ("dist.barrier()", "raise SystemExit\ndist.barrier()"),
    "leaves without a word": ("dist.barrier()", "os._exit(0)\ndist.barrier()"),
    "prints nothing": ("    print(", "    str("),
    "prints on one rank": ("    print(", "    rank or print("),
    "has no barrier": ("dist.barrier()", "dist.get_rank()"),
    "is not finite": ("loss.backward()", "(loss / 0).backward()"),
    "looks who is watching": ("dist.barrier()", "'NSADIAG_REHEARSAL' in os.environ and dist.barrier()"),
}  # fmt: skip
QUICK = ("hangs elsewhere", "trains on rank 0's data", "writes on all ranks", "sleeps in other words")
ALONE = "alone = [dist.new_group([n]) for n in range(dist.get_world_size())][dist.get_rank()]"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The job without a patch is rehearsed once for all tests."""
    folder = tmp_path_factory.mktemp("job").resolve()
    (folder / "train.py").write_text(SCRIPT)
    job = Job(command=(*TORCHRUN, "train.py"), cwd=folder, folder=folder, ranks=2)
    with trials_of(job, 300) as trials:
        yield Bench(rehearse=trials.rehearse, launch=trials.launch, ranks=2, cold=trials.cold)


def planted(name: str) -> Change:
    old, new = PLANTED[name]
    assert old in REPAIRED
    text = REPAIRED.replace(old, new)
    if "group=alone" in new:
        text = text.replace("rank = dist.get_rank()", f"rank = dist.get_rank(); {ALONE}")
    return Change.of({"train.py": SCRIPT}, {"train.py": text})


@pytest.mark.slow
def test_a_right_patch_is_fixed(bench: Bench) -> None:
    judgement = bench.proven(bench.sketched(Change.of({"train.py": SCRIPT}, {"train.py": REPAIRED}), COST))
    assert (judgement.level, judgement.reason) == ("fixed", "")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PLANTED]
)
def test_a_wrong_patch_is_not_called_fixed(bench: Bench, name: str) -> None:
    sketch = bench.sketched(planted(name), COST)
    assert not sketch.is_promising or bench.proven(sketch).level != "fixed"


@pytest.mark.slow
def test_steps_that_are_lost_untold_are_not_fixed(bench: Bench) -> None:
    change = Change.of({"train.py": SCRIPT}, {"train.py": SCRIPT.replace("in loader:", "in loader[:4]:")})
    sketch = bench.sketched(change)
    assert not sketch.is_promising or bench.proven(sketch).level != "fixed"


@pytest.mark.slow
def test_what_is_left_out_is_counted(bench: Bench) -> None:
    module = Module(SCRIPT, (SCRIPT[: SCRIPT.index("for batch")].count("\n") + 1,))
    first = next(loops_end_together.propose(module))
    texts = [Change.of({"train.py": SCRIPT}, {"train.py": text}) for text in (first.text, first.counting)]
    judgement = bench.proven(bench.sketched(texts[0], first.cost, texts[1]))
    assert (judgement.level, judgement.cost) == ("fixed", "left out: 1 of 5 rounds on rank 0")


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


PROPOSER = """import json, sys
document = json.load(sys.stdin)
assert document["sources"]["train.py"] and document["verdict"]["class"] and document["lines"]
sys.stdout.write(open(sys.argv[1]).read())
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_only_the_proposal_that_is_fixed_is_written_and_only_when_asked(jobs: Jobs, tmp_path: Path) -> None:
    script, proposer, diffs = jobs.directory / "train.py", tmp_path / "propose.py", tmp_path / "diffs"
    script.write_text(SCRIPT)
    (jobs.directory / ".gitignore").write_text("*\n!train.py\n")
    proposer.write_text(PROPOSER)
    right = Change.of({"train.py": SCRIPT}, {"train.py": REPAIRED})
    diffs.write_text(f"{planted('sleeps').diff()}---8<---\n{right.diff()}")
    git = ["git", "-C", str(script.parent), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    jobs.run("check", "--out", "run", "--", *TORCHRUN, script)
    command = f"{sys.executable} {proposer} {diffs}"
    asked = ("fix", "run", "--seconds", "300", "--budget", "3000", "--json", "--propose", command)
    assert jobs.run(*asked).returncode == 0
    assert script.read_text() == SCRIPT
    document = json.loads(jobs.run(*asked, "--write").stdout)
    assert (document["result"], document["written"]) == ("fixed", True), document
    assert document["tried"][0]["result"] == "nothing"
    assert script.read_text() == REPAIRED


def test_a_directory_without_a_verdict_is_refused(jobs: Jobs) -> None:
    (jobs.directory / "empty").mkdir()
    done = jobs.run("fix", "empty")
    assert done.returncode == 2
    assert "no verdict.json in empty" in done.stderr
