"""`nsadiag.check`: one function on several ranks, from a test or a script, with the answers of the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

import nsadiag
from nsadiag.errors import UsageError
from nsadiag.evidence.rehearsal import SOCKET

SCRIPT = """
import torch, torch.distributed as dist, nsadiag

def step(extra):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4 + extra * (dist.get_rank() == 2)))
    assert extra or dist.get_rank() != 1 or dist.get_world_size() == 3, "bad shard"

if __name__ == "__main__":
    for ranks, extra in CASES:
        found = nsadiag.check(step, ranks, (extra,), out=f"run-{ranks}-{extra}")
        verdict = found.verdict
        print(found.answer, verdict.cls, verdict.guilty_ranks, verdict.where and verdict.where.line, len(found.calls))
        assert found.directory.joinpath("rehearsal.json").exists() and str(found).startswith(found.answer)
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), start=1) if text in line)


def answers(jobs: Jobs, *cases: tuple[int, int]) -> list[str]:
    (jobs.directory / "train.py").write_text(SCRIPT.replace("CASES", repr(cases)))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_calls_of_a_function_that_differ_are_told_with_rank_and_line(jobs: Jobs) -> None:
    at = line_of("dist.all_reduce")
    assert answers(jobs, (3, 1)) == [f"differs collective_args_mismatch (2,) {at} 3"]


@pytest.mark.slow
def test_a_function_that_agrees_and_one_that_raises(jobs: Jobs) -> None:
    at = line_of("bad shard")
    assert answers(jobs, (3, 0), (2, 0)) == ["agreed healthy () None 0", f"raised rank_exception (1,) {at} 0"]


def test_a_function_that_no_rank_can_import_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot hand") as caught:
        nsadiag.check(lambda: None, 2)
    assert "top level of a module" in caught.value.hint


def test_a_function_that_was_typed_in_is_refused(tmp_path: Path) -> None:
    typed = "import nsadiag\ndef step(): pass\ntry: nsadiag.check(step, 2)\nexcept Exception as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-"], input=typed, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "cannot import step again" in done.stdout


def step() -> None:
    """What a rank would call."""


def test_a_rank_that_comes_to_the_check_itself_is_told_to_guard_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET, "/nowhere")
    with pytest.raises(UsageError, match="on a rank of a rehearsal"):
        nsadiag.check(step, 2)


@pytest.mark.parametrize(("ranks", "seconds"), [(0, 60.0), (2, 0.0), (2, float("nan"))])
def test_no_ranks_and_no_time_are_refused(ranks: int, seconds: float) -> None:
    with pytest.raises(UsageError, match="ranks="):
        nsadiag.check(step, ranks, seconds=seconds)
