"""Whether a job that was cut off was healthy until then: its iterations, and who waited for whom."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.collective_waits import Participation, waits_in
from nsadiag.analysis.facts.pace import Pace
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.rules.performance.onset import onset_of
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.table import Table


def pace(at_s: list[float], until_s: float, done: int | None = None) -> Pace:
    return Pace(rank=0, unit="step", done=len(at_s) if done is None else done, until_s=until_s, at_s=at_s)


def test_steps_at_one_rate_until_the_end_are_steady() -> None:
    assert pace([10 + n / 2 for n in range(40)], 30).unsteady is None
    # Whoever shares a machine is kept from it for a moment.
    assert pace([10 + n / 50 for n in range(50)], 12.8).unsteady is None
    # A validation that has come before is part of the rhythm.
    rhythm = [n + (20 if n >= 20 else 0) for n in range(30)]
    assert pace([float(t) for t in rhythm], 100).unsteady is None


@pytest.mark.parametrize(
    ("steps", "until_s", "said"),
    [
        ([], 30.0, "rank 0 completed no step in 30 s"),
        ([10.0, 12.0], 30.0, "too few to know its rate"),
        ([10 + n / 2 for n in range(20)], 60.0, "completed no step in the last 40 s, and one every 500 ms before"),
        ([10 + n / 50 for n in range(50)], 14.0, "completed no step in the last 3 s, and one every 20 ms before"),
        ([10 + n / 50 for n in range(50)] + [12 + n / 2 for n in range(20)], 22.0, "took 500 ms for each step lately, and 20 ms before"),
    ],
)  # fmt: skip
def test_what_speaks_against_a_steady_rate_is_said(steps: list[float], until_s: float, said: str) -> None:
    assert said in (pace(steps, until_s).unsteady or "")


def test_a_ring_that_has_lost_all_iterations_says_how_long_there_was_none() -> None:
    lost = dataclasses.replace(pace([], 60.0, done=61), silent_from_s=20.0)
    assert lost.unsteady == "rank 0 completed no step in the last 40 s, of 61 steps"


def one(rank: int, issued_s: float, left_s: float | None, call: int = 1, **more: Any) -> Participation:
    row = {"group": "default_pg", "op": "all_reduce", "blocked_s": issued_s, "place": "", **more}
    return Participation(rank=rank, call=call, issued_s=issued_s, left_s=left_s, **row)


def test_the_last_to_come_has_kept_the_others_waiting() -> None:
    (found,) = waits_in([one(0, 1.0, 4.1), one(1, 4.0, 4.1), one(2, 2.0, 4.1)])
    assert (found.rank, found.for_s, found.waiters) == (1, 3.0, (0, 2))


def test_a_source_that_has_left_before_its_receivers_come_waits_for_none_of_them() -> None:
    assert list(waits_in([one(0, 1.0, 1.1), one(1, 4.0, 4.1)])) == []


def test_damaged_times_are_no_waits() -> None:
    assert list(waits_in([one(0, 5.0, 1.0), one(1, 6.0, 2.0)])) == []


def test_an_asynchronous_collective_is_waited_for_from_its_wait_on() -> None:
    issued = [one(0, 1.0, 1.1), one(0, 1.0, 5.1, blocked_s=4.0), one(1, 5.0, 5.1)]
    (found,) = waits_in(issued)
    assert (found.rank, found.for_s) == (1, 1.0)


def recorded(name: str, folder: Path) -> RunDir:
    return unpack(archive_of(name), folder)


def test_waits_name_the_straggler_and_the_rank_that_is_busy_indefinitely(tmp_path: Path) -> None:
    straggler = Case(load_cell(recorded("straggler_slow_input", tmp_path / "a").path))
    first = straggler.once(peer_waits).ranked()[0]
    assert (first.rank, first.now_s) == (1, 0.0) and first.total_s > 5 and first.times >= 30
    busy = Case(load_cell(recorded("livelock_user_code_line_search", tmp_path / "b").path))
    waits = busy.once(peer_waits)
    worst = waits.ranked()[0]
    assert (worst.rank, worst.waiters) == (1, (0,))
    assert worst.now_s > 20 and worst.now_s > 100 * waits.longest_s
    assert worst.what is not None and worst.what.startswith("all_reduce")


@pytest.mark.parametrize(("stopped", "says"), [("timeout", "--timeout"), ("interrupt", "interrupted")])
def test_a_job_that_is_cut_off_at_its_own_rate_is_healthy(tmp_path: Path, stopped: str, says: str) -> None:
    run = recorded("slow_compute_pairwise_collate", tmp_path)
    # The same job by itself: what makes it slow is in its samples alone.
    (run.path / "ranks/00000/samples.jsonl").unlink()
    write_json(run.watch, {**read_json(run.watch), "stopped": stopped})
    verdict = judge_directory(run.path)
    assert (verdict.outcome, verdict.cls) == ("healthy", "healthy"), verdict.summary
    assert says in verdict.summary and "6 steps" in verdict.summary


def test_a_job_that_is_cut_off_in_its_first_evaluation_is_incomplete_and_says_what_is_known(
    tmp_path: Path,
) -> None:
    verdict = judge_directory(recorded("incomplete_first_evaluation", tmp_path).path)
    assert (verdict.outcome, verdict.progress.steps_done) == ("incomplete", 30)
    assert "rank 0 has kept rank 1 waiting for" in verdict.summary
    assert "times the longest wait before" in verdict.summary
    (known,) = [w for w in verdict.peer_waits if w.now_s]
    assert (known.rank, known.waiters) == (0, (1,)) and known.at is not None


def test_nought_steps_are_never_healthy_where_the_job_was_cut_off(tmp_path: Path) -> None:
    run = recorded("healthy_ddp", tmp_path)
    for rank in run.ranks():
        rank.blackbox.unlink()
    ends = {n: {**end, "steps": 0, "clean": False, "by_us": True} for n, end in read_json(run.ends).items()}
    write_json(run.ends, ends)
    look = {"t_s": 5.0, "first": 1, "second": 2, "judgement": "progress", "reason": "moved", "motions": []}
    write_json(run.watch, {**read_json(run.watch), "stopped": "timeout", "looks": [look]})
    assert judge_directory(run.path).outcome not in ("healthy", "slow")


def steps(step_s: list[float], elements: int = 64) -> Table:
    return Table({"step": range(len(step_s)), "step_s": step_s, "elements": [elements] * len(step_s)})


def test_steps_that_jump_for_good_have_an_onset() -> None:
    found = onset_of(steps([0.001] * 40 + [0.04] * 100))
    assert found is not None and (found.step, round(found.times)) == (40, 40)


@pytest.mark.parametrize(
    "step_s",
    [
        [0.001] * 140,
        [0.001] * 40 + [0.04] * 10,  # of which nobody knows yet whether it is for good
        ([0.1] * 9 + [4.0]) * 14,  # an evaluation
        [0.1] * 40 + [0.3] * 100,  # a backbone that is unfrozen
        [0.04] * 40 + [0.001] * 100,
    ],
)
def test_a_pause_or_a_change_of_work_is_none(step_s: list[float]) -> None:
    assert onset_of(steps(step_s)) is None
