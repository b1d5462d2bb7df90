"""`nsadiag prove`: faults that one process does not have are told, healthy scripts are the same, and the rest is refused with the reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.deadlines import programs

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
START = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
maker = torch.Generator().manual_seed(1)
points = torch.randn(64, 8, generator=maker)
labels = points[:, :4].argmax(1)
"""
BY_HAND = (
    START
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(30):
    mine = torch.randperm(64, generator=maker)[:16][rank::world]
    loss = nn.functional.cross_entropy(model(points[mine]), labels[mine])
    optimizer.zero_grad()
    loss.backward()
    for number, parameter in enumerate(model.parameters()):
        FAULT
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
"""
)
LOADER = (
    START
    + """
data = TensorDataset(points, labels)
loader = DataLoader(data, batch_size=int(sys.argv[1]), sampler=DistributedSampler(data, seed=3), drop_last=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    loader.sampler.set_epoch(epoch)
    for seen, wanted in loader:
        loss = nn.functional.cross_entropy(model(seen), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
"""
)
# Columns, then rows of two layers, each drawn by its rank's seed; the second's bias is added before or after the sum.
SPLIT = (
    START
    + """
class Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value): return value
    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(); dist.all_reduce(gradient); return gradient
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        value = value.clone(); dist.all_reduce(value); return value
    @staticmethod
    def backward(ctx, gradient): return gradient
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 12)
        torch.manual_seed(rank)
        self.up, self.down = nn.Linear(12, 16 // world), nn.Linear(16 // world, 12, bias=False)
        torch.manual_seed(5)
        self.bias, self.last = nn.Parameter(torch.randn(12)), nn.Linear(12, 4)
    def forward(self, seen):
        hidden = torch.relu(self.up(Share.apply(self.first(seen))))
        return self.last(TOGETHER)
model = Block()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    chosen = torch.randperm(64, generator=maker)[:16]
    loss = nn.functional.cross_entropy(model(points[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
OWN_DRAWS = BY_HAND.replace("torch.randperm(64, generator=maker)[:16][rank::world]", "torch.randint(64, (8,), generator=torch.Generator().manual_seed(step * 7 + rank))")  # fmt: skip


def proved(jobs: Jobs, text: str, *words: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    script = jobs.directory / "train.py"
    script.write_text(text)
    done = jobs.run(
        "prove", "--out", "run", "--json", "--seconds", "280", *options, "--", *TORCHRUN, script, *words
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def line(found: dict[str, Any]) -> str:
    """The text of the line that is named."""
    file, number, _ = found["place"].rsplit(":", 2)
    return Path(file).read_text().splitlines()[int(number) - 1]


def verdict(jobs: Jobs) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((jobs.directory / "run" / "verdict.json").read_text())
    return found


def test_a_gradient_that_is_not_averaged_is_told_with_its_name(jobs: Jobs) -> None:
    code, found = proved(jobs, BY_HAND.replace("FAULT", "if number == 2: continue"))
    assert (code, found["answer"], found["step"], found["parameter"]) == (1, "differs", 0, "3.weight"), found
    assert "not averaged over ranks" in found["why"] and found["differing"] == 1
    assert "continue" in line(found), found["place"]
    assert (verdict(jobs)["outcome"], verdict(jobs)["class"]) == ("wrong", "silently_wrong")


def test_one_process_follows_the_ranks_and_finds_nothing_that_they_wrote(jobs: Jobs) -> None:
    """It is forked from the process that they come from: torch is imported once."""
    text = BY_HAND.replace("FAULT", "pass").replace(
        "optimizer.step()", "optimizer.step(); Path('mark').touch()"
    )
    text = "from pathlib import Path\nassert not Path('mark').exists()\n" + text
    text = text.replace("for step in", "dist.barrier()\nfor step in")
    code, found = proved(jobs, text)
    assert (code, found["answer"], found["steps"]) == (0, "same", 12), found
    alone = jobs.directory / "run" / "proof" / "alone"
    assert (alone / "ended").read_text() == "0" and not (alone / "run.json").exists()


@pytest.mark.slow
def test_a_healthy_script_is_the_same_and_what_is_off_is_said(jobs: Jobs) -> None:
    code, found = proved(jobs, BY_HAND.replace("FAULT", "pass"))
    assert (code, found["answer"], found["steps"]) == (0, "same", 12), found
    assert found["largest"] < 1e-5 and any("dropout was off" in each for each in found["remarks"])


@pytest.mark.slow
def test_samples_of_each_ranks_own_are_refused_and_never_read_as_healthy(jobs: Jobs) -> None:
    code, found = proved(jobs, OWN_DRAWS.replace("FAULT", "pass"))
    assert (code, found["answer"]) == (3, "not_comparable"), found
    assert "samples" in found["why"] and verdict(jobs)["outcome"] == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--real",)])
def test_a_loader_joins_what_the_samplers_of_all_ranks_give(jobs: Jobs, options: tuple[str, ...]) -> None:
    code, found = proved(jobs, LOADER, "8", options=options)
    assert (code, found["answer"], found["steps"]) == (0, "same", 12), found


@pytest.mark.slow
def test_layers_split_by_hand_are_found_by_their_shape(jobs: Jobs) -> None:
    code, found = proved(jobs, SPLIT.replace("TOGETHER", "Sum.apply(self.down(hidden)) + self.bias"))
    assert (code, found["answer"], found["steps"]) == (0, "same", 12), found
    assert any("was given the parameters" in each for each in found["remarks"])


@pytest.mark.slow
def test_a_bias_that_every_shard_adds_is_told(jobs: Jobs) -> None:
    code, found = proved(jobs, SPLIT.replace("TOGETHER", "Sum.apply(self.down(hidden) + self.bias)"))
    assert (code, found["answer"], found["step"]) == (1, "differs", 0), found
    assert "Sum.apply(self.down(hidden) + self.bias)" in line(found), found["place"]


@pytest.mark.slow
def test_a_script_that_cannot_run_alone_is_not_comparable(jobs: Jobs) -> None:
    code, found = proved(
        jobs, START + "assert world == 2\n" + BY_HAND.removeprefix(START).replace("FAULT", "pass")
    )
    assert (code, found["answer"]) == (3, "not_comparable"), found
    assert "one process cannot run" in found["why"]


def test_a_line_that_starts_no_ranks_is_refused(jobs: Jobs) -> None:
    (jobs.directory / "train.py").touch()
    done = jobs.run("prove", "--", sys.executable, "train.py")
    assert done.returncode == 2 and "--nproc-per-node" in done.stderr


# Both are called by themselves, and their parameters have the same names; the second's input gets no gradient back.
TWO = (
    START
    + """
class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, scale): return value * scale
    @staticmethod
    def backward(ctx, gradient): return None, None
body, head = nn.Linear(8, 6), nn.Linear(6, 4)
scale = nn.Parameter(torch.ones(6))
body.scale = scale
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(14):
    mine = torch.randperm(64, generator=maker)[:16][rank::world]
    loss = nn.functional.cross_entropy(head(body(points[mine]) + Cut.apply(torch.ones(6), scale)), labels[mine])
    optimizer.zero_grad()
    loss.backward()
    for parameter in [*body.parameters(), *head.parameters()]:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
    optimizer.step()
"""
)


@pytest.mark.slow
def test_two_models_with_the_same_names_and_a_gradient_that_nobody_makes(jobs: Jobs) -> None:
    code, found = proved(jobs, TWO)
    assert (code, found["answer"], found["steps"]) == (0, "same", 12), found


RESUMED = (
    START
    + """
from pathlib import Path
model, first, saved = nn.Linear(8, 4), 0, Path("last.pt")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    RESTORED
    first = state["step"]
for step in range(first, 12):
    drawn = torch.Generator().manual_seed(step)
    mine = torch.randperm(64, generator=drawn)[:16][rank::world]
    loss = nn.functional.cross_entropy(model(points[mine]), labels[mine])
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    if step == 4 and rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, saved)
    dist.barrier()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restored", "code"), [('optimizer.load_state_dict(state["optimizer"])', 0), ("pass", 1)]
)
def test_a_second_start_that_loses_the_optimizers_state_is_told(jobs: Jobs, restored: str, code: int) -> None:
    got, found = proved(jobs, RESUMED.replace("RESTORED", restored), options=("--resume",))
    assert (got, found["answer"]) == (code, "differs" if code else "same"), found
    assert not code or "its state did not come back" in found["why"]
    assert not code or "model.load_state_dict" in line(found), found["place"]
    assert not (jobs.directory / "last.pt").exists()


@pytest.mark.slow
def test_a_run_is_compared_with_what_an_earlier_proof_recorded(jobs: Jobs) -> None:
    proved(jobs, BY_HAND.replace("FAULT", "pass"))
    (jobs.directory / "run").rename(jobs.directory / "good")
    code, found = proved(jobs, BY_HAND.replace("FAULT", "pass"), options=("--against", "good"))
    assert (code, found["answer"], found["control"]) == (0, "same", "good"), found
    (jobs.directory / "run").rename(jobs.directory / "same")
    faster = "[group.update(lr=0.02) for group in optimizer.param_groups if step == 3]\n    optimizer.step()"
    changed = BY_HAND.replace("FAULT", "pass").replace("optimizer.step()", faster)
    code, found = proved(jobs, changed, options=("--against", "good"))
    assert (code, found["answer"], found["step"]) == (1, "differs", 3), found


@pytest.mark.slow
def test_a_commit_is_what_another_version_computes(jobs: Jobs) -> None:
    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        programs.run(["git", *name, *words], seconds=60, cwd=jobs.directory)

    git("init", "--quiet")
    (jobs.directory / "train.py").write_text(BY_HAND.replace("FAULT", "pass"))
    git("add", "train.py")
    git("commit", "--quiet", "-m", "good")
    code, found = proved(
        jobs, BY_HAND.replace("FAULT", "parameter.grad *= 1.5"), options=("--against", "HEAD")
    )
    assert (code, found["answer"], found["step"]) == (1, "differs", 0), found
    assert "1.5 times as large" in found["why"]


@pytest.mark.slow
def test_what_ranks_show_among_themselves_is_told_where_nothing_can_be_compared(jobs: Jobs) -> None:
    more = "    optimizer.step()\n    parameter.data += 0.01 * rank"
    text = OWN_DRAWS.replace("FAULT", "pass").replace("    optimizer.step()", more)
    code, found = proved(jobs, text)
    assert (code, found["answer"]) == (1, "wrong"), found
    assert any("not comparable" in each for each in found["remarks"]) and verdict(jobs)["outcome"] == "wrong"
