"""What the model trains and what its optimizer holds: layers that were put in after the optimizer was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.findings import findings
from support.jobs import GIVE_UP_S, Jobs
from support.processes.ranks import Ranks

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.correctness.stale_optimizer import stale_optimizer
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, read_json_lines, write_json
from nsadiag.evidence.records import Finding

RANK = ("env", "RANK=0", "WORLD_SIZE=1", "python", "job.py")
JOB = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 100)

    def forward(self, x):
        return self.head(self.body(x).relu())

def train(model, optimizer, steps=9):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()

model = Model()
"""
REPLACED = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.head = nn.Linear(16, 3)
train(model, optimizer)
"""
RIGHT = {
    # A probe of the head with an optimizer of its own: the body gets gradients that nobody uses, on purpose.
    "probed": "train(model, torch.optim.SGD(model.head.parameters(), 0.1))",
    # Of two optimizers one makes no step yet; the other has a layer that has no part in the loss so far.
    "waits": """
other = torch.optim.SGD(model.head.parameters(), 0.1)
later = nn.Linear(4, 4)
train(model, torch.optim.SGD([*model.body.parameters(), *later.parameters()], 0.1))
""",
    "made after": "model.head = nn.Linear(16, 3)\ntrain(model, torch.optim.SGD(model.parameters(), 0.1))",
    "biases alone": "train(model, torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], 0.1))",
    # Modules of two models have the same names: one is finished, or measures what the other makes.
    "next fold": """
finished, other = model, Model()
train(finished, torch.optim.SGD(finished.parameters(), 0.1))
train(other, torch.optim.SGD(other.parameters(), 0.1))
""",
    "measured": """
measure = nn.Sequential(nn.Linear(100, 4))
maker = nn.Sequential(nn.Linear(8, 100))
train(lambda x: measure(maker(x)), torch.optim.SGD(maker.parameters(), 0.1))
""",
}


@pytest.mark.slow
def test_a_layer_put_in_after_the_optimizer_was_made_is_told_with_its_line(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB + REPLACED)
    process = jobs.start("run", "--json", "--out", "run", "--", *RANK)
    stdout, stderr = process.communicate(timeout=GIVE_UP_S)
    assert stdout, stderr
    verdict = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert (verdict["class"], verdict["outcome"]) == ("silently_wrong", "wrong"), verdict["summary"]
    assert verdict["where"]["parameter"] == "head.weight"
    assert verdict["where"]["code"].strip() == "model.head = nn.Linear(16, 3)"


@pytest.mark.parametrize("how", RIGHT)
def test_what_is_left_alone_on_purpose_is_not_told(ranks: Ranks, how: str) -> None:
    ranks.start(JOB + RIGHT[how], probes="light")
    ranks.end()
    cell = load_cell(ranks.run.path)
    assert not found_in(cell)
    assert judge(cell).outcome != "wrong"
    assert not read_json_lines(ranks.directory().unheld)


def found_in(cell: CellEvidence) -> list[Finding]:
    return findings(stale_optimizer, Case(cell))


def looks(path: Path, *sums: float, **more: Any) -> Any:
    run = RunDir(path=path)
    make_private_dir(run.rank(0).path)
    write_json(run.rank(0).meta, {"rank": 0, "world_size": 1, "pid": 100})
    for n, total in enumerate(sums):
        row = {"step": 2**n, "optimizer": "AdamW", "of": 4, "stale": [[100, 16]]}
        row |= {"stale_count": 1, "unheld_count": 1, "graded": 4, "alike": True, **more}
        append_json_line(run.rank(0).unheld, {**row, "unheld": [["head.weight", [3, 16], total, 9.0]]})
    return load_cell(path)


def test_what_changes_between_two_looks_is_trained_by_something_else(tmp_path: Path) -> None:
    assert found_in(looks(tmp_path / "still", 1.0, 1.0))
    assert not found_in(looks(tmp_path / "moved", 1.0, 1.5))


def test_what_is_left_out_need_not_have_replaced_what_is_stale(tmp_path: Path) -> None:
    """The body is left out of a probe of the head, and a layer that is used later is in it: nothing took its place."""
    probe = {"alike": False, "unheld_count": 3}
    assert not found_in(looks(tmp_path / "probe", 1.0, 1.0, **probe))
    (found,) = found_in(looks(tmp_path / "deeper", 1.0, 1.0, alike=False))
    assert found.confidence < 0.7
    assert found_in(looks(tmp_path / "all", 1.0, 1.0, **probe, of=1))


def test_a_gradient_that_lies_there_from_an_earlier_phase_is_of_no_step(tmp_path: Path) -> None:
    assert not found_in(looks(tmp_path / "left", 1.0, 1.0, gradients=[5.0]))
    assert found_in(looks(tmp_path / "unread", 1.0, 1.0, gradients=[None]))


def test_one_look_alone_proves_nothing(tmp_path: Path) -> None:
    assert not found_in(looks(tmp_path, 1.0))
