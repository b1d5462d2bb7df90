"""More of them: what a log, a table of a launcher's, an archive or a stack may hold besides, and all recordings together.

python -m tests.support.recordings.collected_logs NAME ...     # makes these anew, or all
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
import random
import sys
import tarfile
import tempfile
from pathlib import Path

from . import collected
from .collected import (
    COLLECTED,
    FAILURES,
    HUNG,
    NO_CLIENT,
    REDUCES,
    SAVES,
    Recorded,
    _dumps,
    _init,
    _log,
    _stacks,
    archive_of,
    of_ray,
    raised,
    saving,
    stepping,
    watchdog_lines,
)

EMPTY_BATCH = "ValueError: batch 7 is empty"
# A rank that raised, and one that torchrun then ended: of the same second.
TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_13:45:01
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 70)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 70
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_13:45:01
  host      : node-b
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
IN_TABLE = 'Traceback (most recent call last):\n    File "/job/train.py", line 52, in train\n      step(batch)\n  ValueError: batch 7 is empty\n  '
NOT_ENABLED = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
RESTARTS = (
    "W1121 13:45:09.1 elastic/agent.py:900] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    "I1121 13:46:01.1 elastic/agent.py:695] [default] Rendezvous'ing worker group\n"
)
BEFORE_THE_LAST_LINE = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 53, in train',
    "    loss.backward()",
)
LOADER = "/venv/lib/python3.12/site-packages/torch/utils/data"
LOST_WORKER = (
    "Traceback (most recent call last):",
    f'  File "{LOADER}/dataloader.py", line 1251, in _try_get_data',
    "    data = self._data_queue.get(timeout=timeout)",
    '  File "/usr/lib/python3.12/multiprocessing/connection.py", line 519, in Client',
    "    c = SocketClient(address)",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 31, in train',
    "    for batch in loader:",
    "RuntimeError: DataLoader worker (pid(s) 4182) exited unexpectedly",
)
IN_THE_WORKERS_LOOP = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 52, in train',
    "    for batch in loader:",
    "ValueError: Caught ValueError in DataLoader worker process 0.",
    "Original Traceback (most recent call last):",
    f'  File "{LOADER}/_utils/worker.py", line 349, in _worker_loop',
    "    data = fetcher.fetch(index)",
    "ValueError: a batch is empty",
)
PREEMPTED = (
    "slurmstepd: error: *** JOB 8812 ON node7 CANCELLED AT 2026-11-28T10:00:00 DUE TO PREEMPTION ***\n"
)
KILLED_BY_NUMBER = (
    "mpirun noticed that process rank 2 with PID 4182 on node n1 exited on signal 9 (Killed).\n"
)
NO_HOST_MEMORY = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "81200000000 bytes. Error code 12 (Cannot allocate memory)"
)
OTHER_MODEL = "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 12 params, while rank 1 has inconsistent 10 params."
NO_ANSWER = "[rank1]:[W1121 13:45:00.123 socket.cpp:752] [c10d] The client socket has timed out after 60000ms while trying to connect to (node-0, 29500).\n"
DOWN = (
    "[rank{rank}]:[E1121 13:45:01.1 ProcessGroupNCCL.cpp:684] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the "
    "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data. To avoid data "
    "inconsistency, we are taking the entire process down.\n"
)
NO_FRAMES = "[rank0]:[E816 01:45:40.184 ProcessGroupNCCL.cpp:669] Stack trace of the failed collective: \n"
NO_NAMES = "(gdb) bt\n#0  0x00007f1 in ?? ()\n#1  0x00007f9 in futex_wait () from /lib/libc.so.6\n"


def _of_rank(rank: int, lines: tuple[str, ...]) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def _complete(rank: int) -> str:
    return _init(rank).replace("Init START", "Init COMPLETE")


def _second_communicator(folder: Path) -> None:
    second = _init(0).replace("nranks 4", "nranks 2").replace("0xabc1", "0xabc2")
    text = "".join((*map(_init, range(4)), *map(_complete, range(4)), second))
    (folder / "nccl.log").write_text(text)


def _barrier_and_error(folder: Path) -> None:
    waited = raised("RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms")
    (folder / "rank_0.txt").write_text(waited)
    (folder / "rank_2.txt").write_text(raised(EMPTY_BATCH))


def _behind_at_rest(folder: Path) -> None:
    """Dumps of which all is complete; one rank is some calls behind."""
    _dumps("none", ranks=4)(folder)
    path = folder / "nccl_trace_rank_3"
    dump = pickle.loads(path.read_bytes())
    dump["entries"] = dump["entries"][:-6]
    path.write_bytes(pickle.dumps(dump, 2))


def _young(folder: Path) -> None:
    """Dumps that were written a moment after the call began."""
    _dumps("missing", ranks=4, culprit=1)(folder)
    for path in folder.iterdir():
        entries = pickle.loads(path.read_bytes())["entries"]
        written_ns = max(each["time_created_ns"] for each in entries) + 200_000_000
        os.utime(path, ns=(written_ns, written_ns))


def _large_family(folder: Path) -> None:
    from dump_maker import Job, write_dumps

    write_dumps(folder, Job(ranks=72, entries=24, fault="missing", culprit=5, stacks=2))


def _stacks_of_other_tools(folder: Path) -> None:
    _stacks(*map(stepping, (41, 42, 43)))(folder)
    files = {
        "stack_rank_3.txt": 'Thread 0x00007f1a40a5a740 (most recent call first):\n  File "/job/checkpoints.py", line 40 in save\n',
        "stack_rank_4.txt": "Process 45: /venv/bin/python -u train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n",
        "stack_rank_5.json": json.dumps({"threads": [{"thread_id": 1, "frames": []}]}),
        "stack_rank_6.json": json.dumps([{"thread_id": 1, "frames": None}, {"thread_id": 2, "frames": []}]),
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def _stacks_beside_a_log(folder: Path) -> None:
    _stacks(*map(stepping, (41, 42, 43)))(folder)
    (folder / "rank_3.log").write_text("[rank3]: step 7\n[rank3]: saving\n")


def _error_file_with_time(folder: Path) -> None:
    told = {"message": EMPTY_BATCH, "extraInfo": {"timestamp": "1700000000"}}
    place = folder / "torchrun" / "attempt_0" / "1" / "error.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"message": told}))


def _damaged(folder: Path) -> None:
    """Archives with a wrong byte, without their end, and with a name as long as a book, beside one log that can be read."""
    noise = random.Random(7).randbytes(40_000)
    broken = bytearray(bz2.compress(noise))
    broken[len(broken) // 2] ^= 0xFF
    cut, endless = io.BytesIO(), io.BytesIO()
    for stream, mode, name, content in (
        (cut, "w", "rank_0.log", noise),
        (endless, "w", "n" * (2**20 + 5000), b"x\n"),
    ):
        with tarfile.open(fileobj=stream, mode=mode, format=tarfile.GNU_FORMAT) as packed:  # type: ignore[call-overload]
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    (folder / "wrong.log.bz2").write_bytes(bytes(broken))
    (folder / "cut.tar.gz").write_bytes(gzip.compress(cut.getvalue(), mtime=0)[:30_000])
    (folder / "named.tar.gz").write_bytes(gzip.compress(endless.getvalue(), mtime=0))
    (folder / "job.log").write_text("step 1\n" + raised(EMPTY_BATCH, rank=1))


CRASHED, RAISED = "crashed", "rank_exception"
MORE: dict[str, Recorded] = {
    "dumps_young": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_young),
    "dumps_behind_at_rest": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_behind_at_rest),
    "dumps_of_many": Recorded(cls="missing_rank", outcome=HUNG, guilty=(5,), mechanism="missing_rank", write=_large_family),
    "barrier_absent_by_an_error": Recorded(cls=RAISED, outcome=CRASHED, guilty=(2,), mechanism="rank_exception", write=_barrier_and_error),
    "watchdog_node_silent": Recorded(cls="missing_rank", outcome=HUNG, guilty=(8, 9, 10, 11), mechanism="unseen_rank", write=_log(*map(watchdog_lines, (*range(8), *range(12, 16))))),
    "watchdog_irregular_group": Recorded(cls="unknown", outcome=HUNG, mechanism="unknown", write=_log(*(watchdog_lines(r, group="3 PG GUID 9(mesh_dp)", number=n) for r, n in ((1, 0), (4, 2), (6, 3))))),
    "watchdog_without_frames": Recorded(cls="missing_rank", outcome=HUNG, guilty=(2,), mechanism="unseen_rank", write=_log(watchdog_lines(0), NO_FRAMES, *map(watchdog_lines, (1, 3)))),
    "watchdog_ended_them": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_log(*(DOWN.format(rank=r) for r in (0, 1)))),
    "stacks_no_side": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_stacks(*map(stepping, (41, 42)), *map(saving, (43, 44)))),
    "stacks_of_ray": Recorded(cls="missing_rank", outcome=HUNG, guilty=(3,), mechanism="missing_rank", write=_stacks(*(of_ray(41 + r, REDUCES) for r in range(3)), of_ray(44, SAVES))),
    "stacks_of_other_tools": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_stacks_of_other_tools),
    "stacks_beside_a_log": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_stacks_beside_a_log),
    "debugger_without_names": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(NO_NAMES, raised(EMPTY_BATCH, rank=1))),
    "nccl_most_logs_missing": Recorded(cls="unknown", outcome="unknown", mechanism="unknown", write=_second_communicator),
    "nobody_met_by_a_warning": Recorded(cls="rendezvous_mismatch", outcome=CRASHED, mechanism="meeting_lines", write=_log(NO_ANSWER)),
    "nobody_met_for_an_error": Recorded(cls=RAISED, outcome=CRASHED, guilty=(0,), mechanism="rank_exception", write=_log(raised(NO_CLIENT, rank=1), raised("ValueError: no such preset: 7b", rank=0))),
    "lost_peers_cut_off": Recorded(cls="unknown", outcome=CRASHED, mechanism="unknown", write=_log(*(_of_rank(r, BEFORE_THE_LAST_LINE) for r in (0, 2)))),
    "worker_lost_by_a_connection": Recorded(cls="dataloader_worker_fault", outcome=CRASHED, guilty=(1,), mechanism="dataloader_worker_fault", write=_log(_of_rank(1, LOST_WORKER))),
    "worker_raised_in_its_loop": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(_of_rank(1, IN_THE_WORKERS_LOOP))),
    "memory_of_the_host": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(raised(NO_HOST_MEMORY, rank=1))),
    "model_of_another_size": Recorded(cls="model_structure_mismatch", outcome=CRASHED, guilty=(1,), mechanism="model_structure_mismatch", write=_log(raised(OTHER_MODEL, rank=0))),
    "killed_by_number": Recorded(cls="rank_killed", outcome=CRASHED, guilty=(2,), mechanism="rank_killed", write=_log("[rank0]: step 1\n", KILLED_BY_NUMBER)),
    "preempted": Recorded(cls="rank_killed", outcome=CRASHED, mechanism="process_end", write=_log("step 1\n", PREEMPTED)),
    "sigterm_in_the_same_second": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(raised(EMPTY_BATCH, rank=1), TABLE.format(traceback=NOT_ENABLED))),
    "traceback_in_a_table": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(TABLE.format(traceback=IN_TABLE))),
    "table_of_no_rank": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(FAILURES.replace("rank      : 1", "rank      : ?"), raised(EMPTY_BATCH, rank=1))),
    "traceback_without_an_end": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(_of_rank(3, BEFORE_THE_LAST_LINE[:2]), *(f"[rank0]: step {n}\n" for n in range(700)), raised(EMPTY_BATCH, rank=1))),
    "failed_again_by_another_pid": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(raised(EMPTY_BATCH, rank=1), FAILURES, raised("ValueError: batch 9 is empty", rank=1), FAILURES.replace("77", "99"))),
    "later_attempt_says_nothing": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_log(raised(EMPTY_BATCH, rank=1), FAILURES, RESTARTS, "[rank0]: step 1\n", "[rank1]: step 1\n")),
    "error_file_with_a_time": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_error_file_with_time),
    "damaged_archives": Recorded(cls=RAISED, outcome=CRASHED, guilty=(1,), mechanism="rank_exception", write=_damaged),
}  # fmt: skip
RECORDED = {**collected.RECORDED, **MORE}
DATED = ("dumps_young",)  # whose files' times say how long a call was pending


def pack(name: str) -> None:
    """Write the recording's archive."""
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(archive_of(name), "w:xz") as packed:
        folder = Path(scratch)
        RECORDED[name].write(folder)
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            content = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = len(content)
            member.mtime = path.stat().st_mtime if name in DATED else 0
            packed.addfile(member, io.BytesIO(content))


def main() -> None:
    COLLECTED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or RECORDED:
        pack(name)


if __name__ == "__main__":
    main()
