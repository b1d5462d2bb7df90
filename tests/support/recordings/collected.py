"""Recordings of what other tools leave of a job: dumps, stacks and logs, each with what it must come to.

collected_logs.py has more of them, and makes their archives.

Their files have the words and keys of the libraries that write them; the job in them is made up.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import pickle
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .golden import GOLDEN

COLLECTED = GOLDEN / "collected"
NODE = "node-a"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One recording, and its verdict."""

    cls: str
    outcome: str
    guilty: tuple[int, ...] = ()
    mechanism: str  # the rule that concludes
    write: Callable[[Path], None]


def watchdog_lines(
    rank: int, *, seq: int = 808, op: str = "ALLREDUCE", elements: int = 4096, group: str = "0 PG GUID 0(default_pg)",
    number: int | None = None, output: int | None = None,
) -> str:  # fmt: skip
    """Both lines of NCCL's watchdog, as torch 2.6 prints them; `number`: the rank's own in the group."""
    within, output = rank if number is None else number, elements if output is None else output
    return (
        f"[rank{rank}]:[E816 01:45:40.183 ProcessGroupNCCL.cpp:607] [Rank {within}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={elements}, NumelOut={output}, Timeout(ms)=600000) "
        "ran for 600026 milliseconds before timing out.\n"
        f"[rank{rank}]:[E816 01:45:40.184 ProcessGroupNCCL.cpp:1664] [PG ID {group} Rank {within}] Exception "
        f"(either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {seq + 2}, "
        f"last completed NCCL work: {seq - 1}.\n"
    )


def _dumps(
    fault: str, *, ranks: int = 8, culprit: int = 5, without: tuple[int, ...] = ()
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from dump_maker import Job, write_dumps

        write_dumps(folder, Job(ranks=ranks, entries=60, fault=fault, culprit=culprit, tp=4, stacks=3))
        for rank in without:
            (folder / f"nccl_trace_rank_{rank}").unlink()

    return write


def _stuck_device(folder: Path) -> None:
    from incident_dumps import Incident, write_incident

    write_incident(folder, Incident(fault="gpu", culprits=(9, 14)))


def _few_came(folder: Path) -> None:
    _dumps("none")(folder)
    path = folder / "nccl_trace_rank_0"
    dump = pickle.loads(path.read_bytes())
    last = dump["entries"][-1]
    later = {"collective_seq_id": last["collective_seq_id"] + 1, "state": "started", "retired": False}
    dump["entries"].append(last | later)
    path.write_bytes(pickle.dumps(dump, 2))


def _crossed_groups(folder: Path) -> None:
    _dumps("none", ranks=4)(folder)
    for rank in range(4):
        path = folder / f"nccl_trace_rank_{rank}"
        dump = pickle.loads(path.read_bytes())
        dump["pg_config"] |= {
            n: {"name": n, "desc": f"pair_{n}", "ranks": "[0, 1, 2, 3]"} for n in ("8", "9")
        }
        name = "8" if rank < 2 else "9"
        stuck = {**dump["entries"][-1], "process_group": (name, f"pair_{name}"), "collective_seq_id": 1}
        dump["entries"].append(stuck | {"state": "started", "retired": False, "record_id": 80})
        path.write_bytes(pickle.dumps(dump, 2))


def _log(*lines: str, name: str = "job.log") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text("".join(lines))

    return write


def _logs(**texts: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, text in texts.items():
            (folder / f"{name}.log").write_text(text)

    return write


def own_error(prefix: str, line: int, said: str, stamp: str = "") -> str:
    """The traceback of an uncaught exception, as Python prints it, behind a line of the job's log."""
    lines = ["Traceback (most recent call last):", f'  File "/job/train.py", line {line}, in train', said]
    return f"{stamp}loading shard {line}\n" * bool(stamp) + "".join(
        f"{stamp}{prefix}{each}\n" for each in lines
    )


def _barrier(folder: Path) -> None:
    (folder / "rank_0.txt").write_text(
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 53, in train\n'
        "    dist.monitored_barrier()\n"
        "RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms\n"
    )
    (folder / "rank_1.txt").write_text("waiting\n")


def _init(rank: int) -> str:
    return (
        f"{NODE}:41{rank}:41{rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d0 rank {rank} nranks 4 cudaDev {rank} "
        f"nvmlDev {rank} busId 1000 commId 0xabc1 - Init START\n"
    )


def _summaries(folder: Path) -> None:
    names = (
        "Comm. Op",
        "Message Size",
        "Count",
        "Total comm lat(ms)",
        "Total straggler(ms)",
        "Avg comm lat(ms)",
        "Avg straggler(ms)",
    )
    for rank in range(4):
        more_ms = 30.0 if rank == 2 else 9000.0
        values = (" ", "678.86 MB", 100, "5000.00", f"{more_ms:.2f}", "50.00", f"{more_ms / 100:.2f}")
        rows = ("".join(f"{each: <20}" for each in row) for row in (names, values))
        header, row = rows
        text = "\n".join(("_" * 31, "Breakdown with straggler effect", "-" * 31, header, "all_reduce", row))
        (folder / f"rank_{rank}.log").write_text(f"step 100\n{text}\n")


MEMORY = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 52, in train\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB "
    "of which 1.10 GiB is free.\n"
)


def lost_peer(rank: int) -> str:
    """The traceback of a rank that a peer left."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 53, in train',
        "    loss.backward()",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41023",
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


ABORTED = (
    "\x1b[31m[rank0]:\x1b[0m[rank0]:[E128 13:23:00.788 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group "
    "watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
    "[rank0]:Fatal Python error: Aborted\n"
    "[rank0]:\n"
    "[rank0]:Thread 0x00007f1d2c5d4740 (most recent call first):\n"
    '[rank0]:  File "/venv/lib/python3.12/site-packages/torch/autograd/graph.py", line 823 in _engine_run_backward\n'
    '[rank0]:  File "/job/train.py", line 301 in main\n'
    '[rank0]:  File "/job/train.py", line 436 in <module>\n'
    "[rank1]: step 12\n"
)


def newer_lines(rank: int) -> str:
    """The watchdog's lines as torch 2.7 and later print them."""
    lines = watchdog_lines(rank).replace(
        "Exception (either an error or timeout) detected", "failure detected"
    )
    return lines.replace(
        "at work: 808, last enqueued NCCL work:", "at work sequence id: 808 PG status: last enqueued work:"
    ).replace("last completed NCCL work:", "last completed work:")


def process(pid: int, *threads: tuple[str, tuple[str, ...]]) -> str:
    """What `py-spy dump` prints of one process: by the title of each thread its frames, innermost first."""
    shown = "".join(f"Thread {title}\n" + "".join(f"    {f}\n" for f in frames) for title, frames in threads)
    return f"Process {pid}: /venv/bin/python -u train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n{shown}"


IN_TRAIN = ("train (/job/train.py:52)", "<module> (/job/train.py:71)")
REDUCES = (
    "all_reduce (torch/distributed/distributed_c10d.py:2806)",
    "wrapper (torch/distributed/c10d_logger.py:81)",
    "step (deepspeed/runtime/zero/stage3.py:2120)",
    "step (/job/train.py:60)",
    *IN_TRAIN,
)
SCATTERS = (
    "reduce_scatter_tensor (torch/distributed/distributed_c10d.py:4450)",
    "wrapper (torch/distributed/c10d_logger.py:81)",
    "__avg_scatter_grads (deepspeed/runtime/zero/stage3.py:1402)",
)
IN_BACKWARD = (
    "_engine_run_backward (torch/autograd/graph.py:824)",
    "backward (torch/_tensor.py:648)",
    "backward (deepspeed/runtime/engine.py:2187)",
    *IN_TRAIN,
)
SAVES = ("save (/job/checkpoints.py:40)", *IN_TRAIN)
OF_RAY = (
    "main_loop (ray/_private/worker.py:972)",
    "<module> (ray/_private/workers/default_worker.py:321)",
)


def stepping(pid: int) -> str:
    """A process whose main thread is in the optimizer's all_reduce."""
    return process(pid, (f'{pid} (active): "MainThread"', REDUCES))


def in_backward(pid: int) -> str:
    """A process whose main thread is in a backward, and autograd's own in a reduce_scatter."""
    return process(pid, (f'{pid} (active): "MainThread"', IN_BACKWARD), (f"{pid}7 (active)", SCATTERS))


def saving(pid: int) -> str:
    """A process that writes a file."""
    return process(pid, (f'{pid} (active): "MainThread"', SAVES))


def of_ray(pid: int, frames: tuple[str, ...]) -> str:
    """A worker of Ray's: the main thread runs its loop, another one the user's code."""
    return process(
        pid, (f'{pid} (idle): "MainThread"', OF_RAY), (f'{pid}3 (active): "AsyncIO Thread: default"', frames)
    )


def _stacks(*texts: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for number, text in enumerate(texts):
            (folder / f"stack_rank_{number}.txt").write_text(text)

    return write


def _moved(folder: Path) -> None:
    for look, stack in (("first", stepping), ("second", saving)):
        (folder / look).mkdir()
        for rank in range(2):
            (folder / look / f"rank_{rank}.txt").write_text(stack(41 + rank))


def raised(error: str, *, rank: int | None = None) -> str:
    """A traceback from the user's line, behind the rank where one is given."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 52, in train',
        "    step(batch)",
        error,
    )
    before = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{before}{line}\n" for line in lines)


NO_CLIENT = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node-0, 29500)."
NO_ID = (
    "torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
)
KILLED = (
    "[Wed Mar 19 21:53:29 2025] Out of memory: Killed process 44111 (python) total-vm:412006812kB, anon-rss:98110404kB, "
    "file-rss:71204kB, shmem-rss:2099200kB, UID:1004 pgtables:231004kB oom_score_adj:0\n"
)
OFF_THE_BUS = "[Tue Jan  2 14:12:09 2024] NVRM: Xid (PCI:0000:83:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
MISSING = "Not all ranks joining collective, sequence number: 288710\ninternal record id: 7\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\nmissing ranks: {0}\n"
PORT = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
NO_DEVICE_MEMORY = (
    f"{NODE}:3063028:3064211 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    f"{NODE}:3063028:3064211 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\n"
)
UNHANDLED = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3"


FAILURES = f"""
E1121 13:45:09.1 elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 77) of binary: python
[0]:
  time      : 2026-11-21_13:45:01
  host      : {NODE}
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
"""


def _zip(files: dict[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as packed:
        for name, kind in (("logs", tarfile.DIRTYPE), ("logs/latest", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            packed.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def _as_sent(folder: Path) -> None:
    """What lands in one folder when a user is asked for everything: rank 1's error is in an archive in an archive."""
    error = raised("ValueError: batch 7 is empty", rank=1).encode()
    deep = _zip({"log.zip": _zip({"log.zip": _zip({"log.zip": b""})})})
    logs = _zip(
        {
            "logs/": b"",
            "logs/job.tar.gz": gzip.compress(_tar({"job.log": b"step 1\n" + error}), mtime=0),
            "logs/deep.zip": deep,
            "../outside.log": b"x\n",
            "n" * 220: b"x\n",
            _link("latest.log"): b"job.log",
            "logs/cut.log.gz": gzip.compress(b"step 1\nstep 2\n" * 999, mtime=0)[:40],
        }
    )
    bar = b"\r".join(b"%d%%|##   | %d/100" % (n, n) for n in range(100))
    stack = process(77, ('77 (active): "MainThread"', IN_TRAIN)).encode()
    files: dict[str, bytes] = {
        "logs.zip": logs,
        "half.zip": logs[:200],
        "model.zip": _zip({"archive/data.pkl": b"\x80\x02K\x01."}),
        "all.7z": b"7z\xbc\xaf\x27\x1c",
        "cut.tar.gz": gzip.compress(_tar({"rank_0.log": b"step 1\n" * 99}), mtime=0)[:60],
        "windows.log": "step 1\r\nstep 2\r\n".encode("utf-16"),
        "powershell.log": ("step 1\r\n" * 9).encode("utf-16-le"),
        "utf32.log": codecs.BOM_UTF32_BE + "step 1\n".encode("utf-32-be"),
        "half.log.bz2": bz2.compress(b"step 1\n" * 99),
        "damaged.log.gz": gzip.compress(b"step 1\n" * 99, mtime=0)[:20] + b"\xff" * 90,
        "rank_9.pickle": b"\x80\x04garbage",
        "thread.json": b'[{"pid": 78, "thread_id": 1, "thread_name": "MainThread", "active": true, "frames": []}]',
        **{f"cores/{n}.log": b"" for n in range(9)},
        "rotated.log": b"\0" * 20_000 + b"step 3\n",
        "preallocated.log": b"\0" * 500,
        "empty.log": b"",
        "weights.bin": bytes(range(256)) * 4,
        "bar.log": bar + b"\n",
        "endless.log": b"x" * 1_200_000,
        "long.log": b"step 17, loss 0.25\n" * 200_000,
        "stack.txt.gz": gzip.compress(stack, mtime=0),
        "old_run/run.json": b"{}",
        ".cache/rank_0.log": error,
        ".DS_Store": b"\0\0\0\1Bud1",
        "torchrun/attempt_0/1/stderr.log": b"step 1\n",
        "torchrun/attempt_0/1/error.json": b'{"message": {"message": "ValueError: batch 7 is empty", "extraInfo": {"timestamp": "1"}}}',
        **{f"hosts/{n:02d}.out": b"step 1\n" for n in range(70)},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


LOGGED = """\
{"message": ["step ", "1"], "extra": {"rank": 0, "host": "node-a"}, "level": "INFO"}
[1, 2]
{"loss": 0.25}
(Worker_TP1 pid=78) INFO 11-21 13:45:00 worker.py:10 ready
[rank2]:Thread 0x00007f1d2c5d4740 (most recent call first):
[rank2]:  <no Python frame>
[rank2]: step 7
INCOMPLETE
summary ends
#1  0x00007f2 in poll () from /lib/libc.so.6
Attaching to process 78
* thread #1, name = 'python'
  * frame #0: 0x00007fff libc.so.6`__poll + 10
    frame #1: 0x00007ffe libuv.so`uv_run(loop=0x1) at core.c:40

(gdb) py-bt
Traceback (most recent call first):
  File "/job/train.py", line 71, in <module>
[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 40, in load
[rank3]:     read(path)
The above exception was the direct cause of the following exception:
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 52, in train
[rank1]:     for batch in loader:
[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/job/data.py", line 12, in __getitem__
[rank1]:     raise ValueError("row 7 is empty")
[rank1]: ValueError: row 7 is empty
[rank1]: closing
Traceback (most recent call last):
  File "/job/report.py", line 3, in <module>
During handling of the above exception, another exception occurred:
E1121 13:45:09.1 elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 77) of binary: python
[0]:
  time      : 2026-11-21_13:45:01
  ===
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 77)
"""
HUNG, SLOW = "hung", "slow"
RECORDED: dict[str, Recorded] = {
    "dumps_missing": Recorded(cls="missing_rank", outcome=HUNG, guilty=(5,), mechanism="missing_rank", write=_dumps("missing")),
    "dumps_operation": Recorded(cls="collective_order_mismatch", outcome=HUNG, guilty=(5,), mechanism="collective_order_mismatch", write=_dumps("type")),
    "dumps_size": Recorded(cls="collective_args_mismatch", outcome=HUNG, guilty=(5,), mechanism="collective_args_mismatch", write=_dumps("size")),
    "dumps_device_behind": Recorded(cls="straggler_rank", outcome=SLOW, guilty=(5,), mechanism="device_behind", write=_dumps("straggle")),
    "dumps_stuck_device": Recorded(cls="gpu_kernel_hang", outcome=HUNG, guilty=(9, 14), mechanism="completion_frontier", write=_stuck_device),
    "dumps_one_not_there": Recorded(cls="missing_rank", outcome=HUNG, guilty=(5,), mechanism="unseen_rank", write=_dumps("missing", without=(5,))),
    "dumps_few_came": Recorded(cls="rank_conditional_collective", outcome=HUNG, guilty=(0,), mechanism="missing_rank", write=_few_came),
    "dumps_crossed_groups": Recorded(cls="collective_order_mismatch", outcome=HUNG, guilty=(0, 1, 2, 3), mechanism="collective_order_mismatch", write=_crossed_groups),
    "dumps_complete": Recorded(cls="healthy", outcome="healthy", mechanism="healthy", write=_dumps("none")),
    "dump_of_one_rank": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_dumps("missing", without=(0, 1, 2, 3, 4, 6, 7))),
    "watchdog_one_silent": Recorded(cls="missing_rank", outcome=HUNG, guilty=(2,), mechanism="unseen_rank", write=_log(*(watchdog_lines(r) for r in (0, 1, 3)))),
    "watchdog_operation": Recorded(cls="collective_order_mismatch", outcome=HUNG, guilty=(2,), mechanism="collective_order_mismatch", write=_log(watchdog_lines(0), watchdog_lines(1), watchdog_lines(2, op="BROADCAST"))),
    "watchdog_all": Recorded(cls="unknown", outcome=HUNG, mechanism="unknown", write=_log(*map(watchdog_lines, range(3)))),
    "watchdog_numbers_apart": Recorded(cls="collective_order_mismatch", outcome=HUNG, guilty=(2,), mechanism="out_of_step", write=_log(*(watchdog_lines(r, seq=4411, elements=1) for r in (0, 1, 3)), watchdog_lines(2, seq=4410))),
    "watchdog_group_of_a_mesh": Recorded(cls="missing_rank", outcome=HUNG, guilty=(5,), mechanism="unseen_rank", write=_log(*(watchdog_lines(r, group="3 PG GUID 9(mesh_dp)", number=r // 2) for r in (1, 3, 7)))),
    "stacks_two_camps": Recorded(cls="collective_order_mismatch", outcome=HUNG, mechanism="camps_of_stacks", write=_stacks(*map(in_backward, (41, 42, 43)), *map(stepping, (44, 45)))),
    "stacks_two_elsewhere": Recorded(cls="missing_rank", outcome=HUNG, guilty=(3, 4), mechanism="camps_of_stacks", write=_stacks(*map(stepping, (41, 42, 43)), *map(saving, (44, 45)))),
    "stacks_moved": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_moved),
    "nobody_met": Recorded(cls="rendezvous_mismatch", outcome="crashed", mechanism="stated_cause", write=_log(raised(NO_CLIENT, rank=1), raised(NO_CLIENT, rank=2))),
    "id_never_published": Recorded(cls="missing_rank", outcome=HUNG, guilty=(0,), mechanism="unpublished_id", write=_log(*(raised(NO_ID.format(rank=r), rank=r) for r in (1, 2, 3)))),
    "never_placed": Recorded(cls="actor_unschedulable", outcome=HUNG, mechanism="unplaced_request", write=_log("Demands:\n {'GPU': 1.0} * 2 (PACK): 1+ pending placement groups\n", name="ray_status.txt")),
    "kernel_ended_it": Recorded(cls="host_oom", outcome="crashed", mechanism="process_end", write=_log(KILLED, name="dmesg.txt")),
    "gpu_off_the_bus": Recorded(cls="rank_exception", outcome="crashed", mechanism="hardware_fault", write=_log(OFF_THE_BUS, name="dmesg.txt")),
    "trace_names_missing": Recorded(cls="missing_rank", outcome=HUNG, guilty=(0,), mechanism="tool_answers", write=_log(MISSING, name="torchfrtrace.txt")),
    "port_taken": Recorded(cls="rendezvous_mismatch", outcome="crashed", mechanism="meeting_lines", write=_log(PORT)),
    "nccl_without_memory": Recorded(cls="gpu_oom", outcome="crashed", mechanism="transport_warnings", write=_log(NO_DEVICE_MEMORY, raised(UNHANDLED))),
    "lost_peers_alone": Recorded(cls="unknown", outcome="crashed", mechanism="unknown", write=_log(*map(lost_peer, (0, 2)))),
    "watchdog_newer": Recorded(cls="missing_rank", outcome=HUNG, guilty=(2,), mechanism="missing_rank", write=_log(*map(newer_lines, (0, 1, 3)), "[rank2]: step 7\n")),
    "watchdog_device_error": Recorded(cls="rank_exception", outcome="crashed", guilty=(0,), mechanism="rank_exception", write=_log(ABORTED)),
    "memory_of_no_rank": Recorded(cls="gpu_oom", outcome="crashed", guilty=(2,), mechanism="unnamed_exception", write=_log(MEMORY, *map(watchdog_lines, (0, 1, 3)))),
    "memory_of_nobody_knows": Recorded(cls="gpu_oom", outcome="crashed", mechanism="unnamed_exception", write=_log("World size: 8\n", MEMORY, *map(watchdog_lines, (0, 1, 3)))),
    "barrier_absent": Recorded(cls="missing_rank", outcome=HUNG, guilty=(2,), mechanism="absent_from_barrier", write=_barrier),
    "nccl_init_absent": Recorded(cls="process_group_mismatch", outcome=HUNG, guilty=(2,), mechanism="unmade_communicator", write=_log(*map(_init, (0, 1, 3)), name="nccl.log")),
    "deepspeed_summary": Recorded(cls="straggler_rank", outcome=SLOW, guilty=(2,), mechanism="summarised_waits", write=_summaries),
    "launcher_exit_code": Recorded(cls="rank_exception", outcome="crashed", guilty=(1,), mechanism="exit_code_alone", write=_log(FAILURES, name="job.out")),
    "as_sent": Recorded(cls="rank_exception", outcome="crashed", guilty=(1,), mechanism="rank_exception", write=_as_sent),
    "as_logged": Recorded(cls="rank_exception", outcome="crashed", guilty=(1,), mechanism="rank_exception", write=_log(LOGGED, *(f"[rank0]: step {n}\n" for n in range(400)), f'{{"message": "{"x" * 300_000}"}}\n')),
    "errors_in_two_logs": Recorded(
        cls="rank_exception", outcome="crashed", guilty=(0, 1), mechanism="rank_exception",
        write=_logs(a=own_error("[rank0]: ", 31, "KeyError: 'text'"), b=own_error("[rank1]: ", 44, "OSError: [Errno 5] Input/output error")),
    ),
    "errors_of_nobody_in_two_logs": Recorded(
        cls="rank_exception", outcome="crashed", mechanism="unnamed_exception",
        write=_logs(a=own_error("", 31, "KeyError: 'text'"), b=own_error("", 44, "ValueError: an empty batch")),
    ),
    "errors_of_nobody_with_times": Recorded(
        cls="rank_exception", outcome="crashed", mechanism="unnamed_exception",
        write=_logs(
            a=own_error("", 31, "KeyError: 'text'", "2026-08-16 01:45:43,184 - ERROR - "),
            b=own_error("", 44, "ValueError: an empty batch", "2026-08-16 01:45:40,183 - ERROR - "),
        ),
    ),
}  # fmt: skip


def archive_of(name: str) -> Path:
    return COLLECTED / f"{name}.tar.xz"
