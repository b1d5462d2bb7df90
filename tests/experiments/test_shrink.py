"""Shrinking real runs: what comes out stands alone, fails in the same way, and nothing is left running."""

import ast
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.jobs import Jobs
from support.promises import script_of

from nsadiag.commands.experiments.shrink import self_starting
from nsadiag.evidence.records import Progress, Times, Verdict, Where
from nsadiag.experiments.rewriting.program import Program
from nsadiag.experiments.shrink import further_and_further_back
from nsadiag.experiments.trial import Job, Wanted

TRAIN = '''
    """A trainer with a module of its own."""

    import argparse
    import os

    from schedule import Schedule, describe


    def load(step: int) -> list[int]:
        """Samples of one step."""
        return [step, step + 1]


    def main() -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=4)
        options = parser.parse_args()
        rank = int(os.environ["RANK"])
        schedule = Schedule(warm_up=2)
        total = 0
        for step in range(options.steps):
            samples = load(step)
            total += sum(samples)
            rate = schedule.rate(step - rank)
            print(describe(step, rate), total, flush=True)


    if __name__ == "__main__":
        main()
'''
SCHEDULE = '''
    """The learning rate."""

    import math


    class Schedule:
        def __init__(self, warm_up: int) -> None:
            self.warm_up = warm_up

        def rate(self, step: int) -> float:
            if step < 0:
                raise ValueError(f"step {step} is before the start")  # rank 1 begins too early
            return min(1.0, step / self.warm_up) * math.cos(step)


    def describe(step: int, rate: float) -> str:
        return f"step {step} rate {rate:.2f}"
'''
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")


def verdict_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "verdict.json").read_text())
    return found


@pytest.mark.parametrize(
    ("budget", "most_lines"), [("4", 60), pytest.param("150", 30, marks=pytest.mark.slow)]
)
def test_a_users_script_with_a_module_of_its_own_becomes_one_short_file(
    jobs: Jobs, budget: str, most_lines: int
) -> None:
    (jobs.directory / "train.py").write_text(dedent(TRAIN).lstrip())
    (jobs.directory / "schedule.py").write_text(dedent(SCHEDULE).lstrip())
    jobs.run("run", "--out", "run", "--", *TORCHRUN, "train.py", "--steps", "3")
    before = verdict_of(jobs.directory / "run")
    assert before["class"] == "rank_exception"
    done = jobs.run("shrink", "run", "--out", "small", "--json", "--budget", budget)
    document = json.loads(done.stdout)
    assert (document["conclusion"], done.returncode) == ("kept", 0), done.stderr
    script = jobs.directory / "small" / "train.py"
    source = script.read_text()
    assert document["lines"] == len(source.splitlines()) <= most_lines, source
    assert 'raise ValueError(f"step {step} is before the start")  # rank 1 begins too early' in source
    assert "schedule import" not in source
    if budget == "150":
        assert "argparse" not in source and "describe" not in source
    assert "Run: python train.py" in source
    # A cut that leaves to chance which rank is first is found out by the fresh runs: what stays is of before it.
    turns = sorted(int(folder.name) for folder in (jobs.directory / "small" / "confirmed").iterdir())
    for number in ("1", "2"):
        again = verdict_of(jobs.directory / "small" / "confirmed" / str(turns[-1]) / number)
        assert (again["class"], again["guilty_ranks"]) == (before["class"], before["guilty_ranks"])
    assert not (jobs.directory / "small" / "trials").exists()
    shown = jobs.run("report", "small")
    assert "same verdict in 2 of 2 fresh runs" in shown.stdout


ORDER = """
    import torch.distributed as dist

    NAMES = {"age", "colour", "country", "genre", "language", "mood", "style", "topic", "year", "season"}
    dist.init_process_group("gloo")
    orders = [None, None]
    dist.all_gather_object(orders, list(NAMES))
    counted = len(orders)
    if dist.get_rank() == 1 and orders[0] != orders[1]:
        raise ValueError(f"{counted} ranks have orders of their own")
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_what_forked_ranks_have_alike_is_cut_down_on_ranks_of_their_own_python(jobs: Jobs) -> None:
    """Strings hash alike in processes forked from one, and in no two others: sets come in another order."""
    (jobs.directory / "order.py").write_text(dedent(ORDER).lstrip())
    jobs.run("run", "--out", "run", "--", *TORCHRUN, "order.py")
    assert verdict_of(jobs.directory / "run")["class"] == "rank_exception"
    done = jobs.run("shrink", "run", "--out", "small", "--json", "--budget", "10")
    document = json.loads(done.stdout)
    assert (document["conclusion"], done.returncode) == ("kept", 0), done.stderr
    assert any("started a new Python" in note for note in document["notes"])
    assert "Run: python order.py" in document["source"]


def test_where_the_program_draws_the_parameter_any_will_do_and_nothing_else_may_differ() -> None:
    def told(parameter: str | None, line: str = "model = DDP(net)") -> Verdict:
        return Verdict(
            outcome="wrong", cls="model_structure_mismatch", confidence=0.9, summary="", guilty_ranks=(1,),
            blocked_ranks=(), world_size=2, where=Where(code=line, parameter=parameter), peers_at=None,
            progress=Progress(), evidence=(), rejected=(), gaps=(), fix=None, next=None, times=Times(),
        )  # fmt: skip

    wanted = Wanted.of(told("heads.age.weight"))
    assert wanted.seen_in(told("heads.age.weight")) and not wanted.seen_in(told("heads.mood.weight"))
    assert wanted.instead(told("heads.mood.weight")).endswith("but parameter heads.mood.weight")
    any_will_do = dataclasses.replace(wanted, any_parameter=True)
    assert any_will_do.seen_in(told("heads.mood.weight"))
    for other in (told(None), told("heads.mood.weight", "model = FSDP(net)")):
        assert not any_will_do.seen_in(other)
    assert any_will_do.instead(other).endswith("but code model = FSDP(net)")


def test_a_script_starts_its_own_ranks_below_what_has_to_come_first(tmp_path: Path) -> None:
    body = "from __future__ import annotations\nimport os\nos.write(1, f\"rank {os.environ['RANK']}\\n\".encode())\n"
    text, above = self_starting(body, Job(argv=("x.py",), world_size=2))
    script = tmp_path / "x.py"
    script.write_text(f'"""What it is."""\n\n{text}')
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split("\n")) == ["", "rank 0", "rank 1"]
    lines = text.splitlines()
    assert lines[0].startswith("from __future__") and lines[1 + above] == "import os"


def test_a_script_that_has_a_launcher_of_its_own_stays_as_it_is() -> None:
    assert self_starting("x = 1\n", Job(argv=("x.py",), launcher=("python",))) == ("x = 1\n", 0)


def test_where_the_smallest_does_not_hold_ever_larger_steps_are_taken_back() -> None:
    history = [Program(tree=ast.parse(f"x = {n}")) for n in range(12)]
    assert further_and_further_back(history, 5) == [history[n] for n in (11, 10, 8, 4)]
    assert further_and_further_back(history[:1], 5) == history[:1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rank_conditional_save", "ddp_ready_twice_late_binding"])
def test_a_specimen_keeps_its_signature_in_under_forty_lines(jobs: Jobs, name: str) -> None:
    jobs.run("run", "--out", "run", "--", *TORCHRUN, script_of(name))
    done = jobs.run("shrink", "run", "--out", "small", "--json")
    document = json.loads(done.stdout)
    assert document["conclusion"] == "kept", done.stderr
    assert document["signature"] == verdict_of(jobs.directory / "run")["signature"]
    assert document["lines"] < 45, document["source"]
    assert any("each trial was a rehearsal" in note for note in document["notes"]) == (
        document["outcome"] == "hung"
    )
    # It runs without nsadiag and without anything beside it.
    alone = jobs.directory / "elsewhere"
    alone.mkdir()
    shutil.copy(jobs.directory / "small" / f"{name}.py", alone)
    if document["outcome"] == "crashed":
        command = [sys.executable, f"{name}.py"]
        plain = subprocess.run(
            command, cwd=alone, env=jobs.environment(), capture_output=True, timeout=60, check=False
        )
        assert plain.returncode == 1


def a_run(directory: Path, **verdict: Any) -> Path:
    """What of a run's directory shrink reads first."""
    folder = directory / "run"
    folder.mkdir()
    whole = {
        "outcome": "hung", "class": "missing_rank", "confidence": 0.9, "summary": "", "guilty_ranks": [1],
        "blocked_ranks": [0], "world_size": 2, "where": None, "peers_at": None, "progress": {}, "evidence": [],
        "rejected": [], "gaps": [], "fix": None, "next": None, "times": {},
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps({**whole, **verdict}))
    return folder


@pytest.mark.parametrize(
    ("command", "verdict", "said"),
    [
        (["torchrun", "train.py"], {"outcome": "healthy", "class": "healthy"}, "there is no failure to keep"),
        (["torchrun", "gone.py"], {}, "no such script"),
        (["mpirun", "-n", "2", "python", "train.py"], {}, "cannot take apart: mpirun"),
        (["torchrun", "--nnodes", "2", "train.py"], {}, "several machines"),
        (["torchrun", "train.py", "--token", "***"], {}, "a secret was masked"),
    ],
)
def test_what_cannot_be_cut_down_is_refused_with_a_hint(
    jobs: Jobs, command: list[str], verdict: dict[str, Any], said: str
) -> None:
    run = a_run(jobs.directory, **verdict)
    (run / "run.json").write_text(json.dumps({"kind": "run", "command": command}))
    done = jobs.run("shrink", "run")
    assert done.returncode == 2
    assert said in done.stderr and "hint:" in done.stderr


def test_a_dry_run_says_what_would_stay(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text("print(1)\n")
    run = a_run(jobs.directory)
    (run / "run.json").write_text(json.dumps({"kind": "run", "command": [*TORCHRUN, "train.py"]}))
    done = jobs.run("shrink", "run", "--dry-run")
    assert done.returncode == 0
    assert "cls missing_rank" in done.stdout and os.fspath(jobs.directory / "train.py") in done.stdout


def test_a_directory_without_a_verdict_is_refused(jobs: Jobs) -> None:
    done = jobs.run("shrink", "nothing")
    assert done.returncode == 2
    assert "no verdict.json in nothing" in done.stderr


CELLS = """
    name: depth
    command: build.py
    world_size: 2
    axes:
      colour: {values: [red, blue], env: {COLOUR: "{value}"}}
      layers: {values: [1, 2, 6, 8], args: "--layers {value}"}
"""
BUILD = """
    import argparse
    import os

    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    colour = os.environ["COLOUR"]
    print(colour)
    if options.layers >= 6 and os.environ["RANK"] == "1":
        raise ValueError(f"{options.layers} layers")
"""


@pytest.mark.slow
def test_a_cell_goes_to_its_simplest_values_before_the_script_is_cut(jobs: Jobs) -> None:
    (jobs.directory / "build.py").write_text(dedent(BUILD))
    (jobs.directory / "depth.yaml").write_text(dedent(CELLS))
    jobs.run("matrix", "depth.yaml", "-k", "layers=8 and colour=blue", "--out", "matrix")
    done = jobs.run("shrink", "matrix/cells/colour=blue,layers=8", "--out", "small", "--json")
    document = json.loads(done.stdout)
    assert document["conclusion"] == "kept", done.stderr
    assert {"colour blue became red", "layers 8 became 6"} <= set(document["notes"])
    assert "argparse" not in document["source"]
    assert document["lines"] <= 16, document["source"]
