"""A hang is proven where only ranks that wait themselves could wake the waiting ones, else suspected."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from dump_maker import Job, write_dumps
from support.documents.imports import ROOT
from support.promises import promises
from support.recordings.golden import GOLDEN, unpack
from support.recordings.verdicts import Verdicts

from nsadiag.analysis.judgement.conclude import RELIABILITY
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge, judge_evidence
from nsadiag.evidence.layout import read_json
from nsadiag.evidence.records import Strength

CONFIDENCE = ROOT / "docs" / "lab" / "posted_confidence.csv"
APART = ("posted_apart", "posted_apart_later")
# What was attached to on Ray has promises of its own: test_actors.py.
RECORDINGS = {path.name.partition(".tar")[0]: path for path in sorted(GOLDEN.glob("*.tar.*z"))}
# Of scripts that are recorded on GPUs as well, with other stacks and recorders than on gloo.
PROVEN_ON_GPUS = {
    "nccl_confident_lm",
    "nccl_collective_args_mismatch_broadcast_source",
    "nccl_collective_order_mismatch_two_groups",
    "nccl_ddp_unused_parameter_last_batch",
    "nccl_divergent_module_execution_experts",
    "nccl_missing_rank_stuck_in_queue",
    "nccl_missing_rank_uneven_batches",
    "nccl_p2p_mismatch_both_send_first",
    "nccl_p2p_mismatch_empty_micro_batch",
    "nccl_p2p_mismatch_group_rank",
    "nccl_p2p_mismatch_micro_batches",
    "nccl_process_group_mismatch_monitor_group",
    "nccl_rank_exception_finally_barrier",
    "nccl_rank_exited_early",
    "nccl_uneven_inputs_iterable",
}
PROMISED = {promise.name: promise.certainty for promise in promises()}


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recorded_hang_is_as_certain_as_its_waits(name: str, verdicts: Verdicts) -> None:
    verdict = verdicts.of(RECORDINGS[name])
    if verdict["outcome"] != "hung":
        assert verdict["certainty"] is None
        return
    on_gpus = "proven" if name in PROVEN_ON_GPUS else "suspected"
    assert verdict["certainty"] == (on_gpus if name.startswith("nccl_") else PROMISED[name])
    proofs = [each for each in verdict["evidence"] if each["claim"].startswith("nothing can wake them: ")]
    assert len(proofs) == (verdict["certainty"] == "proven")


def test_every_proven_hang_is_recorded() -> None:
    assert set(RECORDINGS) >= PROVEN_ON_GPUS


def test_a_rank_in_an_uninterruptible_call_may_go_on_by_itself(tmp_path: Path) -> None:
    """As 160 jobs on one host did that opened a driver together, in a barrier and with the interpreter lock held."""
    run = unpack(RECORDINGS["collective_order_mismatch_two_groups"], tmp_path)
    assert judge(load_cell(run.path)).certainty == "proven"
    for path in run.path.glob("ranks/00001/captures/*/proc.json"):
        kernel = read_json(path, {})
        for each in (kernel, *(t for t in kernel["threads"] if t["tid"] == kernel["pid"])):
            each.update(state="D", wchan="os_acquire_rwlock_write")
        path.write_text(json.dumps({**kernel, "syscall": None}))
    assert judge(load_cell(run.path)).certainty == "suspected"


def test_a_bad_file_of_a_snapshot_says_nothing_against_a_job_that_completed(tmp_path: Path) -> None:
    run = unpack(RECORDINGS["healthy_eval_on_rank0"], tmp_path)
    source = run.path / "ranks" / "00000"
    (source / "captures" / "01").mkdir(parents=True, exist_ok=True)
    (source / "captures" / "01" / "proc.json").write_text('{"pid": 7, "threads": [{"tid": 3}]}')
    verdict = judge(load_cell(run.path))
    assert (verdict.outcome, verdict.cls) == ("healthy", "healthy")
    assert any("proc.json" in gap for gap in verdict.gaps)


@pytest.mark.parametrize("name", ["missing_rank_suspended", "missing_rank_suspended_midway"])
def test_who_waits_in_a_backward_for_a_stopped_rank_is_proven_to_while_the_job_runs(
    name: str, tmp_path: Path
) -> None:
    """Native stacks, which show the collective inside the backward, are taken when the job is ended."""
    run = unpack(RECORDINGS[name], tmp_path)
    for path in run.path.rglob("native.txt"):
        path.unlink()
    verdict = judge(load_cell(run.path))
    assert (verdict.cls, verdict.guilty_ranks, verdict.certainty) == ("missing_rank", (1,), "proven")


def test_a_thread_of_the_users_that_waits_for_long_with_a_limit_may_go_on_by_itself(tmp_path: Path) -> None:
    """The timer's place is taken by a function of the script's, whose wait ends as late."""
    run = unpack(RECORDINGS["local_lock_deadlock_watchdog"], tmp_path)
    for path in run.path.glob("ranks/00001/captures/*/py_spy.json"):
        threads = read_json(path, [])
        users = next(t for t in threads if t["thread_name"] == "MainThread")["frames"]
        script = next(f["filename"] for f in users if f["filename"].endswith("watchdog.py"))
        for frame in (f for thread in threads for f in thread["frames"] if f["name"] == "Timer.run"):
            frame.update(name="report_later", filename=script)
        path.write_text(json.dumps(threads))
    assert "report_later" in path.read_text()
    watch = read_json(run.watch, {})
    for motion in (m for look in watch["looks"] for m in look["motions"]):
        motion.update(helper_wakes_in_s=None)  # the agent's look knows timers alone
    run.watch.write_text(json.dumps(watch))
    assert judge(load_cell(run.path)).certainty == "suspected"


def counts() -> dict[Strength, tuple[int, int]]:
    """Verdicts, and those right in class and ranks, by what was claimed: the newest of the inputs that were set apart."""
    rows = [
        row for row in csv.DictReader(CONFIDENCE.open()) if row["set"] in APART and row["answers_percent"]
    ]
    found = {}
    for strength in RELIABILITY:
        mine = [row for row in rows if int(row["stated_percent"]) == round(100 * strength.value)]
        of = [int(row["verdicts"]) for row in mine]
        right = [round(n * float(row["answers_percent"]) / 100) for n, row in zip(of, mine, strict=True)]
        found[strength] = sum(right), sum(of)
    return found


def test_what_a_level_is_worth_in_somebodys_log_is_what_it_was_worth_so_far() -> None:
    """Laplace's share of right answers; a higher level that was worth less is taken together with the one below."""
    pools: list[tuple[int, int, list[Strength]]] = []
    for strength, (right, of) in sorted(counts().items(), key=lambda each: each[0].value):
        pool = (right, of, [strength])
        while pools and laplace(*pools[-1][:2]) > laplace(*pool[:2]):
            below = pools.pop()
            pool = (below[0] + pool[0], below[1] + pool[1], below[2] + pool[2])
        pools.append(pool)
    worth = {strength: laplace(right, of) for right, of, levels in pools for strength in levels}
    assert sum(of for _, of, _ in pools) >= 80
    assert {strength: round(value, 2) for strength, value in worth.items()} == RELIABILITY


def laplace(right: int, of: int) -> float:
    return (right + 1) / (of + 2)


def test_a_log_is_as_sure_as_such_logs_were_and_a_dump_as_it_claims(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 5, in main\n[rank1]: ValueError: x\n'
    )
    found = judge_evidence(tmp_path)
    assert (found.cls, found.confidence) == ("rank_exception", RELIABILITY[Strength.CONCLUSIVE])
    write_dumps(tmp_path / "dumps", Job(ranks=8, entries=60, fault="missing", culprit=5))
    claimed = judge_evidence(tmp_path / "dumps").confidence
    assert claimed in {strength.value for strength in Strength}
    assert claimed not in RELIABILITY.values()
