"""Bisection: along an axis of a spec, along a cost that only grows, along the commits of a checkout."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from support.jobs import Jobs

from nsadiag.evidence.records import Outcome, Progress, Times, Verdict
from nsadiag.experiments.bisect import Bisection, Bisector, Point, Seen


def verdict(outcome: Outcome, cls: str) -> Verdict:
    return Verdict(
        outcome=outcome, cls=cls, confidence=0.9, summary="", guilty_ranks=(), blocked_ranks=(), world_size=2,
        where=None, peers_at=None, progress=Progress(), evidence=(), rejected=(), gaps=(), fix=None, next=None,
        times=Times(),
    )  # fmt: skip


def seen(
    outcome: Outcome = "healthy", cls: str = "healthy", step_s: float | None = None, **more: bool
) -> Seen:
    return Seen(
        directory=Path("x"), verdict=verdict(outcome, cls), wall_s=5.0, step_s=step_s, steps=3,
        timed_out=more.get("timed_out", False),
    )  # fmt: skip


def bisected(values: range, run: Callable[[int, int], Seen], *, repeats: int = 1) -> Bisection:
    """`run` gets the value and how often it was run before."""
    points = [Point(label=str(v), value=float(v)) for v in values]
    return Bisector(points, lambda i: run(values[i], len(points[i].runs)), repeats=repeats).run()


def runs_of(found: Bisection) -> int:
    return sum(len(point.runs) for point in found.points)


@pytest.mark.parametrize("threshold", [2, 3, 500, 999, 1000])
def test_a_threshold_is_found_in_as_many_runs_as_halving_takes(threshold: int) -> None:
    found = bisected(range(1, 1001), lambda v, _: seen("hung", "missing_rank") if v >= threshold else seen())
    assert (found.conclusion, found.wanted) == ("threshold", "missing_rank")
    assert found.last_good is not None and found.first_bad is not None
    assert (found.points[found.last_good].label, found.points[found.first_bad].label) == (
        str(threshold - 1),
        str(threshold),
    )
    assert runs_of(found) <= 12


def test_small_values_may_be_the_ones_that_fail() -> None:
    found = bisected(range(1, 65), lambda v, _: seen("crashed", "rank_exception") if v <= 20 else seen())
    assert (found.first_bad, found.last_good) == (19, 20)


def test_a_point_that_fails_at_times_is_found_by_repeats_and_its_rate_is_known() -> None:
    def run(value: int, before: int) -> Seen:
        fails = value >= 40 or (value >= 30 and before == 2)
        return seen("hung", "missing_rank") if fails else seen()

    found = bisected(range(1, 65), run, repeats=3)
    assert found.conclusion == "threshold"
    assert found.points[found.first_bad or 0].label == "30"
    assert found.points[found.first_bad or 0].state(found.wanted) == "flaky"
    assert found.points[found.first_bad or 0].failures == 1


def test_points_that_fail_in_another_way_are_passed_over_and_named() -> None:
    def run(value: int, _: int) -> Seen:
        if 30 <= value < 35:
            return seen("crashed", "host_oom")
        return seen("hung", "missing_rank") if value >= 35 else seen()

    found = bisected(range(1, 65), run)
    assert found.wanted == "missing_rank"
    assert [p.label for p in found.between] == ["30", "31", "32", "33", "34"]


@pytest.mark.parametrize(
    ("low", "high", "conclusion"),
    [
        (("healthy", "healthy"), ("healthy", "healthy"), "nowhere"),
        (("hung", "missing_rank"), ("hung", "missing_rank"), "everywhere"),
        (("hung", "missing_rank"), ("crashed", "gpu_oom"), "undecided"),
    ],
)
def test_two_ends_alike_leave_nothing_to_halve(
    low: tuple[Outcome, str], high: tuple[Outcome, str], conclusion: str
) -> None:
    found = bisected(range(1, 65), lambda v, _: seen(*(low if v == 1 else high)))
    assert found.conclusion == conclusion
    assert runs_of(found) == 2


def cost(value: int) -> float:
    return 0.01 * value**2


def test_a_cost_that_only_grows_is_a_slope_and_no_threshold() -> None:
    def run(value: int, _: int) -> Seen:
        too_long = value >= 40
        return seen("slow", "slow_compute", cost(value)) if too_long else seen(step_s=cost(value))

    found = bisected(range(1, 65), run)
    assert found.conclusion == "slope"
    assert found.slope is not None and found.slope.exponent == pytest.approx(2.0, abs=0.05)


def test_a_jump_of_the_cost_is_a_threshold() -> None:
    def run(value: int, _: int) -> Seen:
        return seen("slow", "slow_compute", 20 * cost(value)) if value >= 40 else seen(step_s=cost(value))

    found = bisected(range(1, 65), run)
    assert (found.conclusion, found.points[found.first_bad or 0].label) == ("threshold", "40")


def test_a_run_that_its_time_limit_ended_before_the_first_step_may_lie_on_the_curve() -> None:
    def run(value: int, _: int) -> Seen:
        return seen("unknown", "unknown", timed_out=True) if cost(value) > 4.0 else seen(step_s=cost(value))

    assert bisected(range(1, 65), run).conclusion == "slope"


# -- real jobs ------------------------------------------------------------------------------------

FAILS_FROM_SIX = """
    import sys

    def build(layers):
        if layers >= 6:
            raise ValueError(f"{layers} layers")

    build(int(sys.argv[1]))
"""
SPEC = """
    name: depth
    command: build.py
    axes:
      layers: {values: [1, 2, 4], args: "{value}"}
      colour: {values: [red, blue], env: {COLOUR: "{value}"}}
"""


@pytest.fixture
def spec(jobs: Jobs) -> Path:
    (jobs.directory / "build.py").write_text(dedent(FAILS_FROM_SIX))
    path = jobs.directory / "depth.yaml"
    path.write_text(dedent(SPEC))
    return path


@pytest.mark.slow
def test_a_planted_threshold_is_found_with_its_line(jobs: Jobs, spec: Path) -> None:
    line = (
        "bisect",
        spec,
        "--axis",
        "layers",
        "--from",
        "1",
        "--to",
        "12",
        "-k",
        "colour=red",
        "--repeat",
        "1",
    )
    done = jobs.run(*line, "--out", "found", "--json")
    document = json.loads(done.stdout)
    assert (document["conclusion"], document["last_good"], document["first_bad"]) == ("threshold", "5", "6")
    assert document["failure"] == "rank_exception"
    failed = next(p for p in document["points"] if p["label"] == "6")["runs"][0]
    assert failed["where"]["code"] == 'raise ValueError(f"{layers} layers")'
    assert len(document["points"]) <= 6
    assert done.returncode == 1
    assert "layers 5 is healthy" in (jobs.directory / "found" / "report.md").read_text()
    shown = jobs.run("report", "found")
    assert "layers 6 is crashed (rank_exception)" in shown.stdout


def test_axes_that_are_left_open_are_refused_with_a_way_to_fix_them(jobs: Jobs, spec: Path) -> None:
    done = jobs.run("bisect", spec, "--axis", "layers")
    assert done.returncode == 2
    assert "2 combinations of colour are left" in done.stderr
    assert 'choose one value of each with -k, for example -k "colour=red"' in done.stderr


def test_a_dry_run_shows_points_and_runs_nothing(jobs: Jobs, spec: Path) -> None:
    done = jobs.run("bisect", spec, "-k", "colour=red", "--dry-run")
    assert "build.py 4" in done.stdout and "3 points" in done.stdout
    assert not (jobs.directory / "artifacts").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("bisect",), "give one matrix, or --git"),
        (("bisect", "nothing.yaml"), "no such matrix"),
        (("bisect", "depth.yaml", "--axis", "depth"), "no such axis"),
        (("bisect", "depth.yaml", "--axis", "layers", "-k", "colour=red", "--from", "9", "--to", "2"), "nothing to halve"),
        (("bisect", "--git", "HEAD", "--", "python", "x.py"), "give GOOD..BAD"),
        (("bisect", "--git", "a..b", "--axis", "layers"), "no --axis"),
    ],
)  # fmt: skip
def test_a_line_that_means_nothing_is_refused(
    jobs: Jobs, spec: Path, line: tuple[str, ...], said: str
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=jobs.directory, check=True)
    done = jobs.run(*line)
    assert done.returncode == 2
    assert said in done.stderr and "hint:" in done.stderr


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, files: Mapping[str, str], subject: str) -> str:
    for name, text in files.items():
        (folder / name).write_text(dedent(text))
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def test_the_commit_that_broke_a_job_is_named_and_the_checkout_is_left_alone(jobs: Jobs) -> None:
    repository = jobs.directory / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    job = "import loss\nloss.compute()\n"
    good = "def compute():\n    pass\n"
    first = commit(repository, {"train.py": job, "loss.py": good}, "begin")
    commit(repository, {"notes.txt": "1"}, "note")
    commit(repository, {"notes.txt": "2"}, "another note")
    bad = commit(repository, {"loss.py": "def compute():\n    raise ValueError(1)\n"}, "make it faster")
    commit(repository, {"notes.txt": "3"}, "a last note")
    (repository / "notes.txt").write_text("not committed")
    command = ("env", "RANK=0", "WORLD_SIZE=1", "python", "train.py")
    started = subprocess.run(
        ["nsadiag", "bisect", "--git", f"{first}..HEAD", "--repeat", "1", "--json", "--out", jobs.directory / "found", "--", *command],
        cwd=repository, env=jobs.environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert started.returncode == 1, started.stderr
    document = json.loads(started.stdout)
    assert document["conclusion"] == "threshold"
    assert document["first_bad"] == bad[:12]
    assert "make it faster" in document["summary"]
    assert (repository / "notes.txt").read_text() == "not committed"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert jobs.left() == {}
