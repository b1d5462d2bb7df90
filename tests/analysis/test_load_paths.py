"""Files of one job that tell of each other: a py-spy file and a log by pid, several logs, attempts, and logs that end early."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import nsadiag
from nsadiag.analysis.verdict import judge_evidence
from nsadiag.errors import UsageError

SPY = """Process {pid}: {command}
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (idle): "MainThread"
    {at}
    train (/job/train.py:52)
    <module> (/job/train.py:71)

"""
WAITS, SAVES = "all_reduce (torch/distributed/distributed_c10d.py:2806)", "save (/job/checkpoints.py:40)"
TIMED_OUT = (
    "[rank{rank}]:[E816 01:45:40.183 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) "
    "ran for 600026 milliseconds before timing out.\n"
)
RAISED = '{prefix}Traceback (most recent call last):\n{prefix}  File "/job/train.py", line {line}, in train\n{prefix}ValueError: {what}\n'


def raised(rank: int, line: int, what: str = "bad batch") -> str:
    return RAISED.format(prefix=f"[rank{rank}]: ", line=line, what=what)


def failed(pid: int) -> str:
    return (
        "E1128 22:46:37.736000 21982 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
        f"local_rank: 0 (pid: {pid}) of binary: /venv/bin/python\n"
    )


def spy(*processes: tuple[int, str], command: str = "python -u train.py") -> str:
    return "".join(SPY.format(pid=pid, at=at, command=command) for pid, at in processes)


def test_a_py_spy_file_is_joined_to_a_log_by_the_pids_that_a_line_names(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "".join(f"INFO: rank {rank} has pid {4711 + rank}\n" for rank in range(4))
        + "".join(TIMED_OUT.format(rank=rank) for rank in (0, 1, 3))
    )
    (tmp_path / "spy.txt").write_text(spy((4713, SAVES), (4712, WAITS), (4711, WAITS), (4714, WAITS)))
    verdict = judge_evidence(tmp_path / "job.log", tmp_path / "spy.txt")
    assert verdict.guilty_ranks == (2,)
    assert verdict.where is not None and (verdict.where.file, verdict.where.line) == (
        "/job/checkpoints.py",
        40,
    )
    assert not any("pid" in gap for gap in verdict.gaps)


def test_stacks_of_nobody_knows_which_rank_are_not_joined_to_ranks_that_a_log_names(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(TIMED_OUT.format(rank=rank) for rank in (0, 1, 3)))
    (tmp_path / "spy.txt").write_text(spy((4713, SAVES), (4712, WAITS)))
    verdict = judge_evidence(tmp_path)
    assert verdict.where is None or verdict.where.file != "/job/checkpoints.py"
    assert any("nothing tells the rank of 2 stacks (pids 4713, 4712)" in gap for gap in verdict.gaps)


def test_where_nothing_tells_ranks_the_guilty_process_is_named_by_its_pid(tmp_path: Path) -> None:
    (tmp_path / "spy.txt").write_text(spy((4711, WAITS), (4712, SAVES), (4713, WAITS)))
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (1,)
    assert "(These numbers are no ranks: 1 is pid 4712.)" in verdict.summary


@pytest.mark.parametrize("command", ["env RANK={} python -u train.py", "python train.py --local-rank={}"])
def test_a_command_line_may_tell_the_rank(tmp_path: Path, command: str) -> None:
    texts = [
        spy((4711 + n, at), command=command.format(3 - n))
        for n, at in enumerate((SAVES, WAITS, WAITS, WAITS))
    ]
    (tmp_path / "spy.txt").write_text("".join(texts))
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (3,) and "no ranks" not in verdict.summary


def test_stacks_in_the_middle_of_a_log_are_read_beside_it(tmp_path: Path) -> None:
    log = "".join(TIMED_OUT.format(rank=rank) for rank in (0, 1, 3)) + "INFO: rank 2 has pid 4713\n"
    (tmp_path / "job.log").write_text(f"$ py-spy dump\n{log}\n{spy((4713, SAVES))}")
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (2,)
    assert verdict.where is not None and verdict.where.file == "/job/checkpoints.py"


def test_of_several_attempts_the_last_is_the_answer_and_each_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        raised(0, 10, "first")
        + failed(100)
        + raised(1, 20, "second")
        + failed(200)
        + raised(0, 30, "third")
        + failed(300)
    )
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (0,))
    assert verdict.where is not None and verdict.where.line == 30
    told = [(each.number, each.cls, each.guilty_ranks, each.line, each.source) for each in verdict.earlier]
    assert told == [
        (1, "rank_exception", (0,), 10, "job.log#line 1"),
        (2, "rank_exception", (1,), 20, "job.log#line 5"),
    ]


def test_attempts_of_torchruns_log_directory_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for attempt, line in ((0, 10), (1, 20)):
        for rank in (0, 1):
            folder = tmp_path / f"none_x/attempt_{attempt}/{rank}"
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(
                raised(rank, line).replace(f"[rank{rank}]: ", "") if rank else "step 1\n"
            )
    verdict = judge_evidence(tmp_path)
    assert verdict.where is not None and verdict.where.line == 20
    assert [each.line for each in verdict.earlier] == [10]


def test_an_attempt_that_goes_well_after_one_that_failed_is_no_failure_of_its_own(tmp_path: Path) -> None:
    banner = "W1128 22:46:31.788000 21982 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
    (tmp_path / "job.log").write_text(banner + raised(0, 10) + failed(100) + banner + "step 1\nstep 2\n")
    verdict = judge_evidence(tmp_path)
    assert verdict.where is not None and verdict.where.line == 10
    assert any("what follows shows no failure" in gap for gap in verdict.gaps)


def test_silence_in_a_log_that_ends_early_is_no_proof(tmp_path: Path) -> None:
    text = "INFO: world size: 4\n" + "".join(TIMED_OUT.format(rank=rank) for rank in range(4))
    packed = gzip.compress(text.encode(), 0)
    (tmp_path / "job.log.gz").write_bytes(packed[: len(packed) - len(TIMED_OUT) - 20])
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (3,) and verdict.confidence <= 0.5
    assert "job.log.gz ends early" in verdict.summary


def test_what_nsadiag_wrote_itself_is_not_read_as_a_log(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(raised(1, 52))
    (tmp_path / "diag").mkdir()
    (tmp_path / "diag" / "run.json").write_text("{}")
    (tmp_path / "diag" / "report.md").write_text(raised(2, 1, "not this one"))
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (1,)
    assert "diag: a directory that nsadiag wrote: it is judged alone" in verdict.gaps


def test_python_loads_any_number_of_paths(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.log").write_text(raised(rank, 52) if rank else "step 1\n")
    run = nsadiag.load(tmp_path / "rank_0.log", tmp_path / "rank_1.log")
    assert run.verdict is not None and run.verdict.guilty_ranks == (1,)
    assert "bad batch" in run.to_html() and "bad batch" in run.to_markdown()
    assert "thread_states" in [*run.facts]


def test_a_run_directory_is_not_mixed_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(raised(1, 52))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "watch.json").write_text("{}")
    with pytest.raises(UsageError, match="is a run directory"):
        nsadiag.load(tmp_path / "run", tmp_path / "job.log")


def test_a_folder_of_nodes_that_others_made_is_no_run_directory(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "node0"
    folder.mkdir(parents=True)
    (folder / "job.log").write_text(raised(1, 10))
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (1,))


@pytest.mark.parametrize("files", [("a.log", "b.log"), ("b.log", "a.log")])
def test_of_errors_in_several_logs_without_times_none_is_called_the_first(
    files: tuple[str, str], tmp_path: Path
) -> None:
    for rank, file in enumerate(files):
        (tmp_path / file).write_text(
            raised(rank, 10 * (rank + 1), f"batch of {rank}").replace("ValueError", f"{'AB'[rank]}Error")
        )
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (0, 1))
    assert verdict.confidence is not None and verdict.confidence < 0.5
    assert any("nothing tells which of them was the first" in gap for gap in verdict.gaps)


def test_of_errors_without_ranks_or_times_none_is_called_the_first(tmp_path: Path) -> None:
    for file, line in (("a.log", 10), ("b.log", 20)):
        (tmp_path / file).write_text(raised(0, line, f"of line {line}").replace("[rank0]: ", ""))
    verdict = judge_evidence(tmp_path)
    assert any("nothing tells which of them was the first" in gap for gap in verdict.gaps)
    assert len(verdict.evidence) == 2
