"""Attempts of a job in one log are told apart where lines say that it ended and began again, and nowhere else."""

from __future__ import annotations

from nsadiag.analysis.external.inputs.attempts import attempts_in

AGENT = "E1128 22:46:{at:02d}.736000 {agent} torch/distributed/elastic/multiprocessing/api.py:1002] "
FAILED = AGENT + "failed (exitcode: 1) local_rank: {local} (pid: {pid}) of binary: /venv/bin/python"
BANNER = "W1128 22:46:31.788000 21982 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable for each process to be 1"
TABLE = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "Root Cause (first observed failure):",
    "[0]:",
    "  exitcode  : 1 (pid: 22103)",
]


def failed(at: int, pid: int, agent: int = 21982, local: int = 0) -> str:
    return FAILED.format(at=at, agent=agent, local=local, pid=pid)


def parts(*lines: str) -> list[list[str]]:
    return [[text for _, text in part] for part in attempts_in(enumerate(lines, 1))]


def test_torchruns_restarts_are_known_by_the_processes_that_one_agent_ends() -> None:
    """At the level of its log that is usual it says no more of a restart."""
    first = [BANNER, "[rank1]: ValueError: first", failed(37, 22042)]
    second = ["[rank0]: KeyError: second", failed(44, 22069, local=1)]
    third = ["[rank0]: KeyError: third", failed(52, 22103), *TABLE]
    assert parts(*first, *second, *third) == [first, second, third]


def test_two_agents_of_one_attempt_are_not_two_attempts() -> None:
    lines = [BANNER, failed(37, 100, agent=1), "[rank9]: ValueError: x", failed(38, 200, agent=2), *TABLE]
    assert parts(*lines) == [lines]


def test_a_job_that_was_started_again_into_the_same_file_has_two_attempts() -> None:
    first = [BANNER, "[rank1]: ValueError: first", failed(37, 22042), *TABLE, "srun: error: node7: task 0: Exited with exit code 1"]  # fmt: skip
    second = [BANNER, "step 1", "step 2"]
    assert parts(*first, *second) == [first, second]


def test_starts_without_an_end_between_them_are_those_of_several_nodes() -> None:
    lines = [BANNER, BANNER, "NCCL version 2.21.5+cuda12.4", "[rank0]: ValueError: x"]
    assert parts(*lines) == [lines]


def test_a_traceback_that_was_caught_ends_no_attempt() -> None:
    lines = [BANNER, "Traceback (most recent call last):", "ImportError: xformers", "NCCL version 2.21.5"]
    assert parts(*lines) == [lines]


def test_an_agent_that_says_so_begins_anew() -> None:
    first = ["[default] Worker group FAILED. 2/3 attempts left; will restart worker group"]
    second = ["[default] Rendezvous complete for workers. Result:", "step 1"]
    assert parts(*first, *second) == [first, second]


def test_a_count_of_tries_in_the_middle_of_a_sentence_is_no_attempt() -> None:
    lines = [failed(37, 100), "connection attempt 2 of 5 failed", "attempt: download"]
    assert parts(*lines) == [lines]


def test_a_users_own_count_on_a_line_of_its_own_is_one() -> None:
    first, second = ["srun: error: node7: task 3: Out Of Memory"], ["=== Attempt 2/3 ===", "step 1"]
    assert parts(*first, *second) == [first, second]


def test_a_log_without_a_line_has_one_empty_attempt() -> None:
    assert parts() == [[]]
