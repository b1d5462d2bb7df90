"""A rank that is interrupted alone is told from a job that is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.layout import RunDir, read_json

EXIT_CODES = [
    (-2, {"signal": 2, "exit_code": None}),
    (1, {"signal": None, "exit_code": 1}),  # seen of Ubuntu's Python 3.12
]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return unpack(GOLDEN / "rank_killed_interrupted.tar.xz", tmp_path)


@pytest.mark.parametrize("code, end", EXIT_CODES)
def test_whoever_is_interrupted_alone_is_named_whatever_its_exit_code(
    run: RunDir, code: int, end: dict[str, int | None]
) -> None:
    (said,) = run.path.glob("nodes/*/launcher.stderr.log")
    said.write_text(said.read_text().replace("failed (exitcode: -2)", f"failed (exitcode: {code})"))
    ends = read_json(run.ends)
    run.ends.write_text(json.dumps({**ends, "1": {**ends["1"], **end}}))
    verdict = judge(load_cell(run.path))
    assert (verdict.cls, verdict.guilty_ranks, verdict.action.do) == ("rank_killed", (1,), "retry")
    assert "SIGINT" in verdict.summary


def test_no_rank_is_named_where_all_are_interrupted(run: RunDir) -> None:
    (said,) = run.path.glob("nodes/*/launcher.stderr.log")
    said.write_text(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2\n"
    )
    shutil.copy(run.rank(1).path / "exception.json", run.rank(0).path / "exception.json")
    verdict = judge(load_cell(run.path))
    assert verdict.cls not in ("rank_killed", "rank_exception"), verdict.summary
    assert verdict.guilty_ranks == ()


@pytest.fixture
def killed(tmp_path: Path) -> RunDir:
    return unpack(GOLDEN / "missing_rank_time_limit.tar.xz", tmp_path)


def test_a_job_that_is_killed_while_it_stands_still_was_interrupted(killed: RunDir) -> None:
    verdict = judge(load_cell(killed.path))
    assert (verdict.outcome, verdict.guilty_ranks) == ("hung", (1,)), verdict.summary


def test_a_job_that_went_on_after_a_silence_was_not(killed: RunDir) -> None:
    watch = read_json(killed.watch)
    # As after a long pause that has ended: its steps come later.
    watch["looks"] = [{**look, "t_s": number} for number, look in enumerate(watch["looks"])]
    killed.watch.write_text(json.dumps(watch))
    verdict = judge(load_cell(killed.path))
    assert (verdict.outcome, verdict.cls) == ("crashed", "rank_killed"), verdict.summary


@pytest.mark.parametrize("name", ["missing_rank_killed_rank", "missing_rank_killed_job"])
def test_a_suspected_hang_that_somebody_ends_by_sigkill_stays_one(name: str, tmp_path: Path) -> None:
    verdict = judge(load_cell(unpack(GOLDEN / f"{name}.tar.xz", tmp_path).path))
    assert (verdict.cls, verdict.outcome, verdict.guilty_ranks) == ("missing_rank", "hung", (1,))
    assert verdict.certainty == "suspected"


@pytest.fixture
def sigkilled(tmp_path: Path) -> RunDir:
    return unpack(GOLDEN / "missing_rank_killed_rank.tar.xz", tmp_path)


def test_a_sigkill_of_the_kernels_for_want_of_memory_is_no_interruption(sigkilled: RunDir) -> None:
    (node,) = sigkilled.path.glob("nodes/*")
    grown = {"oom_kills_before": 0, "oom_kills": 1, "used_bytes": None, "limit_bytes": None}
    (node / "oom.json").write_text(json.dumps({"grown": [grown], "kernel": []}))
    assert judge(load_cell(sigkilled.path)).cls == "host_oom"


def test_a_sigkill_after_a_suspicion_that_was_withdrawn_is_no_interruption(sigkilled: RunDir) -> None:
    watch = read_json(sigkilled.watch)
    watch["suspicions"] = [{**each, "withdrawn_s": each["t_s"] + 1} for each in watch["suspicions"]]
    sigkilled.watch.write_text(json.dumps(watch))
    assert judge(load_cell(sigkilled.path)).cls == "rank_killed"


def test_a_rank_that_was_gone_when_the_others_were_looked_at_was_killed_first(sigkilled: RunDir) -> None:
    watch = read_json(sigkilled.watch)
    for look in watch["looks"]:
        look["motions"] = [motion for motion in look["motions"] if motion["rank"] != 0]
    sigkilled.watch.write_text(json.dumps(watch))
    verdict = judge(load_cell(sigkilled.path))
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_killed", (0,))


def test_a_job_that_its_own_time_limit_ends_was_not_interrupted(sigkilled: RunDir) -> None:
    ends = read_json(sigkilled.ends)
    sigkilled.ends.write_text(json.dumps({n: {**end, "signal": 6} for n, end in ends.items()}))
    for rank in sigkilled.ranks():
        (rank.path / "stderr.log").write_text("Watchdog caught collective operation timeout\n")
    assert load_cell(sigkilled.path).watch.stopped is None


def test_a_crash_without_a_cause_names_the_line_at_which_a_rank_ended_itself(run: RunDir) -> None:
    for rank in run.ranks():
        (rank.path / "exception.json").unlink(missing_ok=True)
        left = {"call": "exit", "arguments": "(73,)", "place": "/job/train.py:20:main", "handling": None}
        rank.leaving.write_text(json.dumps(left))
    ends = read_json(run.ends)
    run.ends.write_text(json.dumps({n: {**end, "signal": None, "exit_code": 73} for n, end in ends.items()}))
    verdict = judge(load_cell(run.path))
    assert verdict.cls == "unknown", verdict.summary
    assert verdict.evidence[0].claim == "rank 0 ended itself with exit code 73 at train.py:20 in main"
