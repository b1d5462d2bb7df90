"""`with nsadiag.phase(NAME):` on the timeline, in `top`, and nowhere where nothing is recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.jobs import Jobs

import nsadiag
from nsadiag.analysis.snapshot import ranks_now
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import phases

JOB = """
import torch
import nsadiag

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    with nsadiag.phase("train"):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    with nsadiag.phase("evaluate"), torch.no_grad():
        with nsadiag.phase("metrics"):
            model(torch.randn(2, 4))
    with nsadiag.phase("save"):
        pass
    for name in range(2 * MOST):
        with nsadiag.phase(f"part {name}"):
            pass
with nsadiag.phase("save"):
    raise OSError("no space")
""".replace("MOST", str(phases.MOST_NAMES))


def test_phases_are_recorded_with_their_line_and_end_with_an_exception(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = jobs.run("run", "--out", tmp_path / "run", "--json", "--", sys.executable, script)
    assert json.loads(done.stdout)["verdict"]["class"] == "rank_exception"
    run = nsadiag.load(tmp_path / "run")
    events = run.events[run.events.kind == Kind.PHASE]
    begun = events[events.phase == Phase.BEGIN]
    assert begun.name.tolist().count("evaluate") == begun.name.tolist().count("metrics") == 3
    assert begun[begun.name == "save"].site.tolist()[-1] == f"{script}:19:<module>"
    assert len(set(begun.name)) <= phases.MOST_NAMES + 1 and phases.ONE_OF_MANY in set(begun.name)
    assert len(begun) == len(events[events.phase == Phase.END])
    assert "phase save" in run.to_html()


def test_top_names_the_phase_that_a_rank_is_in(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, torch, nsadiag\ntorch.nn.Linear(2, 2)(torch.ones(2))\n"
        "with nsadiag.phase('evaluate'):\n    os._exit(3)\n"
    )
    jobs.run("run", "--out", tmp_path / "run", "--", sys.executable, tmp_path / "job.py")
    (now,) = ranks_now(RunDir(path=tmp_path / "run"))
    assert now.last == "phase evaluate"


def test_without_nsadiag_a_phase_does_nothing_and_loads_no_torch() -> None:
    source = "import nsadiag, sys\nwith nsadiag.phase('x'): pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)
