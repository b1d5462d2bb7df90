"""Ranks that a log allows a careful reader to name, and those that it leaves open."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.collected import MEMORY, watchdog_lines

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.records import Verdict


def raised(before: str, error: str, frames: int = 1) -> str:
    frame = ('  File "/job/train.py", line {}, in train', "    step()")
    lines = (
        "Traceback (most recent call last):",
        *(line.format(50 + n) for n in range(frames) for line in frame),
        error,
    )
    return "".join(f"{before}{line}\n" for line in lines)


def table(*ends: tuple[int, int]) -> str:
    """torchrun's summary: ranks with the codes by which they ended; the last is what it calls the root cause."""
    rows = "".join(
        f"[{number}]:\n  time      : 2026-11-21_13:45:01\n  host      : node-a\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {4400 + rank})\n  error_file: <N/A>\n"
        for number, (rank, code) in enumerate(ends)
    )
    return f"ChildFailedError:\n{rows}"


def judged(folder: Path, files: str | Mapping[str, str]) -> Verdict:
    for name, text in ({"job.log": files} if isinstance(files, str) else files).items():
        (folder / name).write_text(text)
    return judge_evidence(folder)


TIMED_OUT = "".join(watchdog_lines(rank) for rank in range(7))
LAST_WORDS = "[rank7]:[E816 01:45:40.2 ProcessGroupNCCL.cpp:630] [Rank 7] To avoid data inconsistency, we are taking the entire process down.\n"
NCCL = "node-a:300:301 [0] NCCL INFO comm 0xa rank 8 nranks 16 cudaDev 0 busId 1 commId 0xff - Init START\n"
PARAMETERS = "RuntimeError: [2]: params[0] in this process with sizes [10, 10] appears not to match sizes of the same param in process 0."
CHECKPOINT = raised("[rank0]: ", "CheckpointException: CheckpointException ranks:dict_keys([3])") + (
    "[rank0]: Traceback (most recent call last): (RANK 3)\n"
    '[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 192, in reduce_scatter\n'
    "[rank0]:     local_data = map_fun()\n"
    "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/ck/__3_0.distcp'\n"
)
CHILD = "[rank: 3] Child process with PID 4711 terminated with code -9. Forcefully terminating all other processes to avoid zombies\n"
MPIRUN = "mpirun noticed that process rank 3 with PID 4711 on node node7 exited on signal 9 (Killed).\n"
CUT = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 10, in main\n[rank3]:     step()\n'

LOGS = {
    "an abort says nothing of its cause": (table((3, -6)), "unknown", ()),
    "a crash beside aborts is the cause of them": (table((5, -11), (0, -6)), "rank_killed", (5,)),
    "codes at one time are nobody's": (table((1, 1), (0, 1)), "rank_exception", ()),
    "a code of one rank is its own": (table((3, 1)), "rank_exception", (3,)),
    "a cut traceback says nothing": (CUT, "unknown", ()),
    "an error without frames is one": (
        "[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: NaN\n" + TIMED_OUT,
        "rank_exception",
        (2,),
    ),
    "whom the watchdog ended had a timeout too": (TIMED_OUT + LAST_WORDS, "unknown", ()),
    "more errors than ends are of more ranks": (
        4 * raised("", "KeyError: 'x'") + table((2, 1)),
        "rank_exception",
        (),
    ),
    "as many errors as ends are theirs": (
        2 * raised("", "KeyError: 'x'") + table((3, 1), (2, 1)),
        "rank_exception",
        (2, 3),
    ),
    "an error that is logged and raised again is one": (
        raised("", "KeyError: 'x'").replace("line 50", "line 51")
        + raised("", "KeyError: 'x'", frames=2)
        + table((2, 1)),
        "rank_exception",
        (2,),
    ),
    "of a communicator one host's log shows one part": (NCCL, "unknown", ()),
    "DDP's check names the rank that speaks": (raised("", PARAMETERS), "model_structure_mismatch", (2,)),
    "a checkpoint's error is of the rank that it names": (CHECKPOINT, "rank_exception", (3,)),
    "Lightning counts its children": (CHILD, "rank_killed", (3,)),
    "mpirun names the rank": (MPIRUN, "rank_killed", (3,)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "cls", "guilty"), LOGS.values(), ids=LOGS)
def test_the_ranks_of_a_log(tmp_path: Path, text: str, cls: str, guilty: tuple[int, ...]) -> None:
    verdict = judged(tmp_path, text)
    assert (verdict.cls, verdict.guilty_ranks) == (cls, guilty), verdict.summary


def test_memory_of_a_container_is_of_the_rank_that_sigkill_ended(tmp_path: Path) -> None:
    """Whose pids are others than the host's kernel has."""
    kernel = (
        "[12345.6] Out of memory: Killed process 31396 (python) total-vm:91234567kB, anon-rss:61234567kB\n"
    )
    verdict = judged(tmp_path, {"torchrun.log": table((3, -9)), "dmesg.txt": kernel})
    assert (verdict.cls, verdict.guilty_ranks) == ("host_oom", (3,))
    assert any("SIGKILL alone" in gap for gap in verdict.gaps), verdict.gaps


def test_memory_of_several_processes_is_not_given_to_the_one_that_is_silent(tmp_path: Path) -> None:
    verdict = judged(tmp_path, 2 * MEMORY + TIMED_OUT + "World size: 8\n")
    assert (verdict.cls, verdict.guilty_ranks) == ("gpu_oom", ())


def test_who_aborted_is_told_and_what_aborts_a_process(tmp_path: Path) -> None:
    verdict = judged(tmp_path, table((3, -6)))
    assert "rank 3" in verdict.summary.lower()
    assert "watchdog" in verdict.summary


def test_where_a_cut_traceback_stood_is_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, CUT)
    assert "cut before its last line" in verdict.summary
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/job/train.py", 10)
