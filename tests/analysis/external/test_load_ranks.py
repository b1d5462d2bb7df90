"""Ranks that a log allows a careful reader to name, and those that it leaves open."""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.recordings.collected import MEMORY, watchdog_lines

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
UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
    "your module has parameters that were not used in producing loss. You can enable unused parameter detection, and by \n"
    "making sure all `forward` function outputs participate in calculating loss. \n"
    "Parameter indices which did not receive grad for rank 3: 282 283 \n"
)
DRIVER = "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"
PAIR = "RuntimeError: [gloo/transport/tcp/pair.cc:575] Application timeout caused pair closure"
BUS = (
    "[2026-05-31T14:29:44.1641Z] dc5b74e6 [rank=0] || Fatal Python error: Bus error\n"
    "[2026-05-31T14:29:44.1642Z] dc5b74e6 [rank=0] || \n"
    "[2026-05-31T14:29:44.1643Z] dc5b74e6 [rank=0] || Current thread 0x00007fdc2e4f0740 (most recent call first):\n"
    '[2026-05-31T14:29:44.1644Z] dc5b74e6 [rank=0] ||   File "/job/train.py", line 121 in main\n'
)
STALLED = (
    "[0]<stderr>:stall_inspector.cc:105] One or more tensors were submitted to be reduced by subset of ranks\n"
    "[0]<stderr>:Missing ranks:\n[0]<stderr>:3: [allreduce.layer1.weight, allreduce.layer1.bias ...]\n"
)
AROUND = "node-a:33:39 [7] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 5.\n"
CAUGHT = "(pid=40210) *** SIGSEGV received at time=1763374221 on cpu 11 ***\n"

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
    "DDP's error names the rank that raises it": (UNUSED, "ddp_unused_parameter", (3,)),
    "what several ranks meet in their environment is nobody's": (
        "".join(raised(f"[rank{r}]: ", DRIVER) for r in (0, 3)),
        "rank_exception",
        (),
    ),
    "of one rank alone it is that rank's": (raised("[rank3]: ", DRIVER), "rank_exception", (3,)),
    "a worker that lost its peer by a closed pair raised nothing of its own": (
        raised("[rank3]: ", PAIR), "unknown", (),
    ),
    "faulthandler says what ended a rank": (BUS, "rank_killed", (0,)),
    "Horovod names who lacks": (STALLED, "missing_rank", (3,)),
    "NCCL's pointer to a rank's surroundings is none to the rank": (AROUND, "collective_args_mismatch", ()),
    "a signal that Ray's worker caught is of nobody known": (CAUGHT, "rank_killed", ()),
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


def spied(pid: int, call: str, line: int) -> str:
    return (
        f"Process {pid}: python train.py\nPython v3.11.5 (/usr/bin/python3.11)\n\n"
        f'Thread {pid} (active): "MainThread"\n    {call}\n    main (/job/train.py:{line})\n    <module> (/job/train.py:90)\n\n'
    )


REDUCES, SAVES = "all_reduce (torch/distributed/distributed_c10d.py:2806)", "save (/job/ckpt.py:5)"


@pytest.mark.parametrize("heading", ["=== rank {} ===", "# Rank {} (node a)", "rank{}:"])
def test_a_heading_above_a_process_names_its_rank(tmp_path: Path, heading: str) -> None:
    stacks = {3: REDUCES, 0: REDUCES, 1: SAVES, 2: REDUCES}
    text = "".join(
        f"{heading.format(rank)}\n{spied(900 + n, call, 40)}" for n, (rank, call) in enumerate(stacks.items())
    )
    assert judged(tmp_path, text).guilty_ranks == (1,)


def test_stacks_in_a_log_that_begins_with_a_bracket_are_read(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path, f"[2026-01-29 13:12:37 PP1 TP0] Pyspy dump for PID 90227:\n{spied(90227, REDUCES, 40)}"
    )
    assert not [gap for gap in verdict.gaps if "could not be read" in gap]
    assert verdict.where is not None
    assert verdict.where.line == 40


def test_numbers_that_files_of_several_series_share_are_no_ranks(tmp_path: Path) -> None:
    files = {"job-master-0.log": watchdog_lines(0), "job-worker-0.log": raised("", "KeyError: 'x'")}
    assert judged(tmp_path, files).guilty_ranks == ()


def test_a_number_in_a_files_name_that_is_a_pid_is_no_rank(tmp_path: Path) -> None:
    assert judged(tmp_path, {"worker_26346.log": raised("", "KeyError: 'x'")}).guilty_ranks == ()


def test_a_line_of_rays_tells_the_rank_of_a_process(tmp_path: Path) -> None:
    told = "(TorchTrainer pid=80) - (node_id=ab12, ip=10.0.0.4, pid=882) world_rank=3, local_rank=3, node_rank=0\n"
    text = told + raised("(RayTrainWorker pid=882, ip=10.0.0.4) ", "KeyError: 'x'")
    assert judged(tmp_path, text).guilty_ranks == (3,)


@pytest.mark.parametrize(("came", "guilty"), [((0, 1, 3), (2,)), ((0,), ())])
def test_who_did_not_come_to_a_meeting_is_known_where_all_who_came_say_so(
    tmp_path: Path, came: tuple[int, ...], guilty: tuple[int, ...]
) -> None:
    told = "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
    verdict = judged(tmp_path, "".join(raised("", told.format(rank)) for rank in came))
    assert (verdict.cls, verdict.guilty_ranks) == ("rendezvous_mismatch", guilty)


def test_more_in_a_meeting_than_there_are_is_an_earlier_start(tmp_path: Path) -> None:
    told = "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=8, worker_count=16, timeout=0:30:00)"
    verdict = judged(tmp_path, raised("", told))
    assert verdict.cls == "rendezvous_mismatch"
    assert "earlier start" in verdict.summary


def test_all_culprits_in_one_line_of_a_tool_are_named(tmp_path: Path) -> None:
    line = "error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Culprit rank 110; Error type: SIZE_OR_SYNTAX_MISMATCH\n"
    assert judged(tmp_path, line).guilty_ranks == (22, 110)


@pytest.mark.parametrize(("output", "cls"), [(4, "collective_args_mismatch"), (2, "network_stall")])
def test_an_exchange_in_which_more_is_received_than_sent_has_no_fitting_splits(
    tmp_path: Path, output: int, cls: str
) -> None:
    text = "".join(watchdog_lines(r, seq=1, op="ALLTOALL_BASE", elements=2, output=output) for r in (0, 1))
    assert judged(tmp_path, text).cls == cls


def test_a_worker_that_a_process_lost_is_a_loaders_at_no_line_of_chance(tmp_path: Path) -> None:
    lost = "RuntimeError: DataLoader worker (pid 29001) is killed by signal: Killed."
    verdict = judged(tmp_path, raised("", lost))
    assert verdict.cls == "dataloader_worker_fault"
    assert verdict.where is None or verdict.where.line is None


def test_a_rename_that_another_process_made_before_is_a_race(tmp_path: Path) -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/out/tmp-checkpoint-10' -> '/out/checkpoint-10'"
    verdict = judged(tmp_path, raised("[rank1]: ", error))
    assert (verdict.cls, verdict.guilty_ranks) == ("checkpoint_write_race", (1,))


def test_a_request_that_ray_never_placed_is_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "Demands:\n {'GPU': 1.0} * 2 (PACK): 1+ pending placement groups\n")
    assert verdict.cls == "actor_unschedulable"
    assert "{'GPU': 1.0} * 2" in verdict.summary


def test_what_nothing_understands_is_quoted_and_blames_nobody(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "step 1\nError executing job with overrides: ['machine=a']\n")
    assert (verdict.cls, verdict.guilty_ranks) == ("unknown", ())
    assert "Error executing job" in verdict.summary
    assert verdict.evidence[0].source == "job.log#line 2"


@pytest.mark.parametrize(("told", "guilty"), [("World size: 2\n", (0,)), ("", ())])
def test_of_as_many_on_either_side_the_silent_are_named_where_nobody_else_can_be_missing(
    tmp_path: Path, told: str, guilty: tuple[int, ...]
) -> None:
    verdict = judged(tmp_path, told + watchdog_lines(1))
    assert verdict.guilty_ranks == guilty
    assert verdict.confidence <= 0.5


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[{}]<stderr>:", "[rank {}] "])
def test_of_a_damaged_number_no_set_of_ranks_is_made(tmp_path: Path, prefix: str) -> None:
    text = raised(prefix.format(1), "ValueError: bad shard") + raised(
        prefix.format(999_999_999), "ValueError: bad shard"
    )
    tracemalloc.start()
    try:
        verdict = judged(tmp_path, text)
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()
    assert verdict.cls in ("rank_exception", "unknown")
