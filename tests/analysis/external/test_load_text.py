"""`nsadiag analyze` on stacks and logs that a user has: py-spy, faulthandler, torchrun, NCCL's watchdog."""

from pathlib import Path

import pytest
from dump_maker import Job, write_dumps

from nsadiag.analysis.external.stacks import from_py_spy
from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.judgement.conclude import RELIABILITY
from nsadiag.analysis.verdict import judge_evidence as judge_external
from nsadiag.errors import UsageError
from nsadiag.evidence.records import Strength
from nsadiag.evidence.stacks import from_faulthandler

WAITS = """Process {pid}: /venv/bin/python -u train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:81)
    mean_over_ranks (metrics.py:18)
    train (train.py:52)
    <module> (train.py:71)
Thread {pid}9 (idle): "Thread-1"
    wait (threading.py:359)
    run (uploader.py:33)
"""
STRAYS = """Process 4712: /venv/bin/python -u train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 4712 (idle): "MainThread"
    save (/job/checkpoints.py:40)
    train (/job/train.py:57)
    <module> (/job/train.py:71)
"""
FAULTS = """Timeout (0:05:00)!
Thread 0x00007f1a2bfff700 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/job/uploader.py", line 33 in run

Thread 0x00007f1a40a5a740 (most recent call first):
  File "/job/checkpoints.py", line 40 in save
  File "/job/train.py", line 57 in train
  File "/job/train.py", line 71 in <module>
"""
WATCHDOG = (
    "[rank{rank}]:[E816 01:45:40.183 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) "
    "ran for 600026 milliseconds before timing out.\n"
    "[rank{rank}]:[E816 01:45:40.184 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception "
    "(either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {last}, "
    "last completed NCCL work: {before}.\n"
)
TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 71, in <module>
    train()
  File "/job/train.py", line 52, in train
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 64x10)
"""
LOST_PEER = """Traceback (most recent call last):
  File "/job/train.py", line 53, in train
    loss.backward()
RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41023
"""


def watchdog(rank: int, seq: int = 808, op: str = "ALLREDUCE", elements: int = 4096, ahead: int = 2) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, elements=elements, last=seq + ahead, before=seq - 1)


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_py_spy_text_of_each_rank_shows_the_one_that_is_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, rank_0=WAITS.format(pid=4711), rank_1=STRAYS, rank_2=WAITS.format(pid=4713))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.guilty_ranks) == ("hung", (1,))
    assert verdict.where is not None and (verdict.where.file, verdict.where.line) == (
        "/job/checkpoints.py",
        40,
    )
    assert verdict.peers_at is not None and verdict.peers_at.line == 18
    assert verdict.confidence <= 0.85
    assert any("one snapshot" in gap for gap in verdict.gaps)


def test_two_looks_at_the_same_lines_are_surer_than_one(tmp_path: Path) -> None:
    texts = {"rank_0": WAITS.format(pid=4711), "rank_1": STRAYS, "rank_2": WAITS.format(pid=4713)}
    once = judge_external(write(tmp_path, **texts))
    again = tmp_path / "again"
    again.mkdir()
    write(again, **texts)
    twice = judge_external(tmp_path)
    assert once.confidence <= 0.5 < twice.confidence
    assert twice.guilty_ranks == once.guilty_ranks == (1,)


def test_ranks_that_moved_between_two_looks_are_not_called_hung(tmp_path: Path) -> None:
    for folder, line in (("first", 40), ("second", 44)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, rank_0=WAITS.format(pid=4711), rank_1=STRAYS.replace(":40)", f":{line})"))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls) == ("unknown", "unknown")
    assert "the job moved" in verdict.summary


def test_all_processes_in_one_file_are_numbered_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, dump=WAITS.format(pid=4711) + STRAYS + WAITS.format(pid=4713))
    verdict = judge_external(tmp_path)
    assert (verdict.guilty_ranks, verdict.world_size) == ((1,), 3)
    assert any("(pids 4711, 4712, 4713): they are numbered in this order" in gap for gap in verdict.gaps)


def test_a_library_is_not_taken_for_the_users_code() -> None:
    (process,) = from_py_spy(WAITS.format(pid=1))
    files = [frame.filename for frame in process.threads[0].frames]
    assert files[0].endswith("site-packages/torch/distributed/distributed_c10d.py")
    assert files[2:] == ["metrics.py", "train.py", "train.py"]
    assert process.threads[1].frames[0].filename.startswith("/usr/lib/python3")


def test_faulthandlers_main_thread_is_the_one_that_began_in_a_module(tmp_path: Path) -> None:
    threads = from_faulthandler(FAULTS)
    (main,) = [t for t in threads if t.is_main]
    assert main.frames[0].line == 40
    write(tmp_path, rank_0=WAITS.format(pid=4711), rank_1=FAULTS, rank_2=WAITS.format(pid=4713))
    assert judge_external(tmp_path).guilty_ranks == (1,)


def test_a_torchrun_log_directory_tells_the_first_error_from_those_that_follow(tmp_path: Path) -> None:
    for rank, text in enumerate((LOST_PEER, TRACEBACK, LOST_PEER)):
        folder = tmp_path / "none_ab12/attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
        (folder / "stdout.log").write_text("step 1 loss 2.3\n")
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "rank_exception", (1,))
    assert verdict.where is not None and verdict.where.line == 52
    assert verdict.where.code == "loss = model(batch)"
    assert verdict.evidence[0].source == "none_ab12/attempt_0/1/stderr.log#line 1"


def test_ranks_that_share_a_log_are_told_apart_by_their_prefix(tmp_path: Path) -> None:
    lines = [f"[rank3]: {line}" for line in TRACEBACK.splitlines()]
    others = [f"[rank0]: {line}" for line in LOST_PEER.splitlines()]
    (tmp_path / "train.log").write_text("\n".join(["step 7", *others, *lines]) + "\n")
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (3,))


def test_an_exception_knows_what_it_was_raised_from() -> None:
    text = (
        TRACEBACK + "\nThe above exception was the direct cause of the following exception:\n\n" + LOST_PEER
    )
    (raised,) = read_log(numbered(text)).raised
    exception = raised.exception
    assert exception.message.startswith("[gloo/transport")
    assert exception.cause and exception.cause.type == "RuntimeError" and exception.cause.meant


@pytest.mark.parametrize(
    ("logs", "cls", "guilty"),
    [
        # NVIDIA/nccl#1409: one rank broadcasts where the others reduce.
        ([watchdog(0), watchdog(1), watchdog(2, op="BROADCAST")], "collective_order_mismatch", (2,)),
        ([watchdog(0), watchdog(1, elements=4000), watchdog(2)], "collective_args_mismatch", (1,)),
        ([watchdog(0), "[rank1]: step 7\n", watchdog(2)], "missing_rank", (1,)),
        ([watchdog(0), watchdog(1), watchdog(2)], "unknown", ()),
    ],
)
def test_what_nccls_watchdog_says_on_all_ranks_is_compared(
    tmp_path: Path, logs: list[str], cls: str, guilty: tuple[int, ...]
) -> None:
    (tmp_path / "job.log").write_text("".join(logs))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", cls, guilty)
    assert verdict.where is not None and verdict.where.collective is not None
    assert verdict.where.collective.seq == 808
    assert verdict.evidence[0].source.startswith("job.log#line ")


def test_dumps_say_which_collective_and_stacks_say_where_the_rank_is(tmp_path: Path) -> None:
    write_dumps(tmp_path / "dumps", Job(ranks=4, entries=100, culprit=1))
    stacks = {f"rank_{r}": STRAYS if r == 1 else WAITS.format(pid=4711 + r) for r in range(4)}
    write(tmp_path, **stacks)
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.guilty_ranks, verdict.world_size) == ("hung", (1,), 4)
    assert verdict.where is not None and (verdict.where.file, verdict.where.line) == (
        "/job/checkpoints.py",
        40,
    )
    assert verdict.where.collective is not None and verdict.where.collective.seq == 81
    assert {e.source.partition("#")[0] for e in verdict.evidence} <= {
        *(f"dumps/nccl_trace_rank_{r}" for r in range(4)), *(f"{name}.txt" for name in stacks)
    }  # fmt: skip


def nccl_init(rank: int, *, complete: bool = False, size: int = 4) -> str:
    state = "COMPLETE" if complete else "START"
    return (
        f"node-a:41{rank}:41{rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d0 rank {rank} nranks {size} cudaDev {rank} "
        f"nvmlDev {rank} busId 1000 commId 0xabc1 - Init {state}\n"
    )


def test_nccls_log_tells_who_never_came_to_make_a_communicator(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text("".join(nccl_init(rank) for rank in (0, 1, 3)))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", "process_group_mismatch", (2,))
    assert (verdict.world_size, verdict.evidence[0].source) == (4, "nccl.log#line 1")


def test_a_communicator_that_was_made_is_no_evidence_of_anything(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text("".join(nccl_init(r) + nccl_init(r, complete=True) for r in range(4)))
    with pytest.raises(UsageError):
        judge_external(tmp_path)


def fingerprint(op: str, shape: str) -> str:
    """One side of what TORCH_DISTRIBUTED_DEBUG=DETAIL says."""
    tensor = f", TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))"
    return f"CollectiveFingerPrint(SequenceNumber=7, OpType={op}{tensor if shape else ')'}"


def detail_log(path: Path, calls: list[tuple[str, str]]) -> Path:
    """The log of a job whose ranks made these calls: each compares all with its own, and names the first that differs."""
    text = ""
    for rank, call in enumerate(calls):
        other = next(r for r, each in enumerate(calls) if each != call)
        message = (
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
            f"{fingerprint(*call)}, but Rank {other} is running collective: {fingerprint(*calls[other])}."
        )
        lines = [
            TRACEBACK.splitlines()[0],
            '  File "/job/train.py", line 52, in train',
            "    share(loss)",
            message,
        ]
        text += "".join(f"[rank{rank}]: {line}\n" for line in lines)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("odd", "cls", "said"),
    [
        (("ALLREDUCE", "40"), "collective_args_mismatch", "all_reduce float32[40]"),
        (("BROADCAST", "32"), "collective_order_mismatch", "broadcast float32[32]"),
        # An older torch leaves out the sizes of the peer's call.
        (("REDUCE", ""), "collective_order_mismatch", "reduce"),
    ],
)
def test_torchs_own_comparison_of_calls_is_read(
    tmp_path: Path, odd: tuple[str, str], cls: str, said: str
) -> None:
    log = detail_log(tmp_path / "job.log", [("ALLREDUCE", "32")] * 3 + [odd])
    found = judge_external(log)
    assert (found.outcome, found.cls, found.guilty_ranks) == ("crashed", cls, (3,))
    assert said in found.summary


def test_of_two_ranks_at_odds_in_a_log_neither_is_called_guilty(tmp_path: Path) -> None:
    found = judge_external(detail_log(tmp_path / "job.log", [("ALLREDUCE", "32"), ("BROADCAST", "32")]))
    assert (found.cls, found.guilty_ranks, found.blocked_ranks) == ("collective_order_mismatch", (), (0, 1))
    assert "nothing shows which of ranks 0, 1 is at fault" in found.summary
    assert found.where is not None
    assert found.where.line == 52


@pytest.mark.parametrize(("differs", "guilty"), [(7, (7,)), (2, ()), (1, ())])
def test_ranks_that_torch_passed_over_agree_with_the_one_that_reports(
    tmp_path: Path, differs: int, guilty: tuple[int, ...]
) -> None:
    """It compares in the order of ranks: of eight, those before the seventh agree; those behind the second may not."""
    calls = [("ALLREDUCE", "32")] * 8
    calls[differs] = ("BROADCAST", "1")
    whole = detail_log(tmp_path / "job.log", calls).read_text().splitlines(True)
    mine = [line for line in whole if line.startswith("[rank0]")]
    (tmp_path / "job.log").write_text("".join(mine) + "[rank7]: step 12\n")
    assert judge_external(tmp_path / "job.log").guilty_ranks == guilty


def test_a_monitored_barrier_names_who_did_not_come(tmp_path: Path) -> None:
    said = LOST_PEER.replace("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41023",
                             "Rank 2 failed to pass monitoredBarrier in 30000 ms")  # fmt: skip
    write(tmp_path, rank_0=said, rank_1="waiting\n")
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", "missing_rank", (2,))


def test_torchruns_table_tells_who_was_killed_first(tmp_path: Path) -> None:
    (tmp_path / "slurm-812.out").write_text("""
E1121 13:45:09.1 elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python
Failures:
[1]:
  time      : 2026-11-21_13:45:08
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 76)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_13:45:01
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 77)
  error_file: <N/A>
""")
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "rank_killed", (1,))
    assert verdict.evidence[0].source == "slurm-812.out"


def test_an_exit_code_without_a_traceback_is_no_clean_end(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text("""
[0]:
  time      : 2026-11-21_13:45:01
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
""")
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (1,))
    assert verdict.confidence <= RELIABILITY[Strength.WEAK] and any(
        "no traceback of rank 1" in gap for gap in verdict.gaps
    )


def test_a_log_of_a_job_that_went_well_is_no_evidence_of_anything(tmp_path: Path) -> None:
    write(tmp_path, rank_0="step 1 loss 2.0\nstep 2 loss 1.9\ndone\n")
    with pytest.raises(UsageError, match="1 log without a traceback, timeout or end of a rank"):
        judge_external(tmp_path)


def test_torchruns_error_file_has_the_time_of_the_first_error(tmp_path: Path) -> None:
    for rank, (moment, said) in enumerate([("1790000009", LOST_PEER), ("1790000001", TRACEBACK)]):
        folder = tmp_path / f"attempt_0/{rank}"
        folder.mkdir(parents=True)
        text = said.replace("\n", "\\n").replace('"', '\\"')
        last = said.splitlines()[-1].replace('"', '\\"')
        (folder / "error.json").write_text(
            f'{{"message": {{"message": "{last}", "extraInfo": {{"py_callstack": "{text}", "timestamp": "{moment}"}}}}}}'
        )
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (1,))
    assert "at 0.0 s" in verdict.evidence[0].claim


def deepspeed_summary(more_ms: float) -> str:
    """Two operations, as `deepspeed.comm.log_summary(show_straggler=True)` prints them."""
    columns = (
        "Comm. Op",
        "Message Size",
        "Count",
        "Total comm lat(ms)",
        "Total straggler(ms)",
        "Avg comm lat(ms)",
        "Avg straggler(ms)",
    )
    lines = [
        "_" * 31,
        "Breakdown with straggler effect",
        "-" * 31,
        "".join(f"{name: <20}" for name in columns),
    ]
    for name, size, least_ms in (
        ("all_reduce", "678.86 MB", 4000.0),
        ("reduce_scatter_tensor", "6.0 MB", 1000.0),
    ):
        values = (size, 100, *(f"{ms:.2f}" for ms in (least_ms, more_ms / 2, least_ms / 100, more_ms / 200)))
        lines += [name, "".join(f"{value: <20}" for value in (" ", *values))]
    return "\n".join(lines) + "\n"


def test_deepspeeds_summaries_name_the_rank_that_waited_for_nobody(tmp_path: Path) -> None:
    for rank in range(4):
        folder = tmp_path / f"logs/none/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"step 100\n{deepspeed_summary(30.0 if rank == 2 else 9000.0)}")
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.outcome, verdict.guilty_ranks) == ("straggler_rank", "slow", (2,))
    assert (verdict.world_size, verdict.blocked_ranks) == (4, (0, 1, 3))
    assert "rank 0 waited for it for 9.0 s, beside 5.0 s of communication" in verdict.summary


def test_deepspeeds_summary_of_one_rank_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(deepspeed_summary(9000.0))
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("straggler_rank", ())
    assert verdict.gaps


def test_a_network_without_a_straggler_is_no_finding(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank_{rank}.log").write_text(deepspeed_summary(200.0))
    with pytest.raises(UsageError):
        judge_external(tmp_path)
