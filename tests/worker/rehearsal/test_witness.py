"""A rank of a rehearsal writes down what it computes and writes: nothing of ours, and nothing unless it is asked to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.rehearsal import WITNESS
from nsadiag.evidence.rehearsal.witnessed import Seen, read_seen

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
dist.all_reduce(model.weight.grad)
optimizer.step()
torch.save(model.state_dict(), "model.pt")
open("log.txt", "w").write("done")
"""


def seen_by(jobs: Jobs, script: Path, **variables: str) -> list[Seen]:
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
    jobs.run("check", "--out", "run", "--force", "--", *torchrun, script, env=variables)
    return read_seen(RunDir(path=jobs.directory / "run").rank(1).witness)


@pytest.mark.slow
def test_a_rank_writes_down_calls_losses_steps_and_files_in_their_order(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    first = seen_by(jobs, script, **{WITNESS: "0"})
    found = [(seen.what, seen.op or Path(seen.path).name) for seen in first if seen.op != "new_group"]
    assert found == [
        ("loss", ""), ("call", "all_reduce"), ("step", ""), ("file", "model.pt"), ("file", "log.txt"),
    ]  # fmt: skip
    again = seen_by(jobs, script, **{WITNESS: "0"})
    assert [seen.value for seen in again] == [seen.value for seen in first]


@pytest.mark.slow
def test_a_rank_that_is_not_asked_writes_nothing_down(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert seen_by(jobs, script) == []
