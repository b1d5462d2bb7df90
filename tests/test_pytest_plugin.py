"""`@pytest.mark.distributed` and `@pytest.mark.ranks`: passes, fails and hangs of tests on two ranks, as pytest reports them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.pytest_plugin import pytest_collection_modifyitems

HEAD = """
import os, threading
import pytest, torch
import torch.distributed as dist

@pytest.fixture
def group():
    dist.init_process_group("gloo")
    yield dist.get_rank()
    dist.destroy_process_group()

@pytest.mark.distributed(nproc=2, timeout=90)
"""
PASSES = """
@pytest.mark.parametrize("size", [3])
def test_sum(group, size):
    x = torch.full((size,), float(group + 1))
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * size
"""
FAILS = """
def test_sum(group):
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.sum() == 5, "not the sum"
"""
HANGS = """
def test_save(group):
    if dist.get_rank() == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(2))
"""


@pytest.fixture
def tested(jobs: Jobs) -> object:
    def run(source: str, *options: str) -> subprocess.CompletedProcess[str]:
        (jobs.directory / "test_ranks.py").write_text(HEAD + source)
        line = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "nsadiag.pytest_plugin",
            "-q",
            *options,
            "test_ranks.py",
        ]
        return subprocess.run(
            line, cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False
        )

    return run


def line_of(source: str, text: str) -> int:
    lines = (HEAD + source).splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.mark.slow
def test_a_test_that_passes_on_all_ranks_passes(tested: object) -> None:
    done = tested(PASSES)  # type: ignore[operator]
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_test_that_fails_on_a_rank_fails_with_the_line(tested: object) -> None:
    done = tested(FAILS)  # type: ignore[operator]
    assert "1 failed" in done.stdout, done.stdout
    assert "CRASHED rank_exception" in done.stdout
    assert f"test_ranks.py:{line_of(FAILS, 'not the sum')} in test_sum" in done.stdout


def test_a_hang_fails_with_the_verdict_and_its_report(tested: object, jobs: Jobs) -> None:
    done = tested(HANGS, "--nsadiag-out", "kept")  # type: ignore[operator]
    assert "1 failed" in done.stdout, done.stdout
    assert "HUNG rank_conditional_collective, rank 0 of 2" in done.stdout
    assert f"test_ranks.py:{line_of(HANGS, 'dist.barrier()')} in test_save" in done.stdout
    report = Path(done.stdout.partition("report  ")[2].split()[0])
    assert report.exists() and report.is_relative_to(jobs.directory / "kept")


REHEARSED = HEAD.replace("distributed(nproc=2, timeout=90)", "ranks(2, timeout=90)")


def rehearsed(jobs: Jobs, *tests: str, options: tuple[str, ...] = ()) -> str:
    head, mark, _ = REHEARSED.partition("@pytest.mark.ranks")
    marked = [f"{mark}(2, timeout=90){test}" for test in tests]
    (jobs.directory / "test_ranks.py").write_text("".join([head, *marked]))
    line = [sys.executable, "-m", "pytest", "-p", "nsadiag.pytest_plugin", "-q", "-rA", *options]
    done = subprocess.run(
        [*line, "test_ranks.py"],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_calls_that_differ_fail_a_test_with_both_calls_and_the_branch(jobs: Jobs) -> None:
    shown = rehearsed(jobs, HANGS)
    assert "1 failed" in shown, shown
    for said in ("rank 0  barrier  ", "rank 1  all_reduce SUM float32[2]  ", "`if dist.get_rank() == 0`"):
        assert said in shown
    assert "rank_conditional_collective, rank 0 of 2" in shown


RAISES = """
def test_shards(group):
    shards = [1, 2]
    assert group == 0 or shards == [1, 3], "not the shards"
    dist.barrier()
"""
SKIPS = """
def test_nothing(group):
    pytest.skip("there is nothing")
"""
EXPECTED = """
@pytest.mark.xfail(strict=True)
def test_expected(group):
    assert group == 0
"""


@pytest.mark.slow
def test_each_rehearsed_test_is_reported_as_pytest_does(jobs: Jobs) -> None:
    shown = rehearsed(jobs, PASSES, RAISES, SKIPS, EXPECTED, options=("-n", "2"))
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in shown, shown
    assert "on rank 1 of 2:" in shown and "assert [1, 2] == [1, 3]" in shown
    assert "there is nothing" in shown


@pytest.mark.slow
def test_the_first_failure_of_a_rehearsal_ends_the_run_where_that_is_asked_for(jobs: Jobs) -> None:
    shown = rehearsed(jobs, RAISES, HANGS, options=("-x",))
    assert "1 failed in" in shown and "test_save" not in shown


@pytest.mark.parametrize("option", ["--pdb", pytest.param("--trace", marks=pytest.mark.slow)])
def test_a_debugger_for_ranks_is_refused(jobs: Jobs, option: str) -> None:
    shown = rehearsed(jobs, PASSES, options=(option,))
    assert "cannot stop the ranks of test_ranks.py::test_sum" in shown, shown
    assert "no tests ran" in shown


def test_a_debugger_is_no_mistake_where_no_test_on_ranks_is_chosen(jobs: Jobs) -> None:
    shown = rehearsed(jobs, PASSES, options=("--pdb", "-m", "not ranks"))
    assert "1 deselected" in shown, shown


REFUSED = "takes nproc (ranks) and timeout (seconds)"


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.distributed(nproc=0),
        pytest.mark.distributed(nproc="two"),
        pytest.mark.distributed(timeout=0),
        pytest.mark.distributed(ranks=2),
        pytest.mark.distributed(2, 60, 3),
        pytest.mark.ranks(0),
        pytest.mark.ranks(nproc=2),
    ],
    ids=["nproc=0", "nproc='two'", "timeout=0", "ranks=2", "2, 60, 3", "ranks(0)", "ranks(nproc=2)"],
)
def test_a_mark_that_is_misspelt_is_refused(
    mark: pytest.MarkDecorator, request: pytest.FixtureRequest
) -> None:
    marked = pytest.Function.from_parent(request.node.parent, name="test_it", callobj=lambda: None)
    marked.add_marker(mark)
    count = "n" if mark.name == "ranks" else "nproc"
    with pytest.raises(pytest.UsageError, match=re.escape(REFUSED.replace("nproc", count))):
        pytest_collection_modifyitems([marked])


def test_a_run_with_a_mark_that_is_misspelt_ends_with_a_usage_error(jobs: Jobs) -> None:
    (jobs.directory / "test_ranks.py").write_text(
        "import pytest\n@pytest.mark.distributed(nproc=0)\ndef test_it(): pass\n"
    )
    line = [sys.executable, "-m", "pytest", "-p", "nsadiag.pytest_plugin", "-q", "test_ranks.py"]
    done = subprocess.run(
        line, cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert REFUSED in done.stderr


GUIDES = """
import pytest, torch, torch.distributed as dist

@pytest.mark.distributed(nproc=2, timeout=90)
def test_gradients_are_averaged(process_group):
    x = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(x, group=process_group)
    assert x.tolist() == [1.0, 1.0]

@pytest.mark.distributed(nproc=2, timeout=90)
def test_of_a_fixture_that_is_not_there(groups): ...
"""


@pytest.mark.slow
def test_the_guides_example_runs_as_it_is_and_a_missing_fixture_is_named(jobs: Jobs) -> None:
    (jobs.directory / "test_guide.py").write_text(GUIDES)
    line = [sys.executable, "-m", "pytest", "-p", "nsadiag.pytest_plugin", "-q", "test_guide.py"]
    done = subprocess.run(
        line, cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "fixture 'groups' not found" in done.stdout
    assert done.stdout.index("fixture 'groups' not found") < done.stdout.index("elastic_launch")


def test_the_fixture_says_which_tests_it_is_for(jobs: Jobs) -> None:
    (jobs.directory / "test_plain.py").write_text("def test_plain(process_group): ...\n")
    line = [sys.executable, "-m", "pytest", "-p", "nsadiag.pytest_plugin", "-q", "test_plain.py"]
    done = subprocess.run(
        line, cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False
    )
    assert "process_group is for tests that are marked distributed or ranks" in done.stdout
