"""When is a job still? The rules on what two captures show, at the edges that real machines have."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import pytest
from support.processes import looks
from support.processes.looks import process

from nsadiag.agent.captures.kernel.sleeping import waits_until
from nsadiag.agent.stillness.activity import Activity, Usage, usage, work
from nsadiag.agent.stillness.device_queue import held_up, queue_of
from nsadiag.agent.stillness.judgement import judge
from nsadiag.agent.stillness.motion import Motion, gpu_pct, joining
from nsadiag.agent.stillness.timed_waits import limit_s, naps, same_nap
from nsadiag.agent.watching.sampler import is_torn, where_it_works
from nsadiag.evidence.blocking import is_timer
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame

WAITING = Motion(
    rank=0, seconds=2.0, cpu_share=0.003, frames_changed=False, io_bytes=1200, events=0, collectives=0, waits_for_peers=True
)  # fmt: skip
IDLE = dataclasses.replace(WAITING, rank=1, waits_for_peers=False)
AT_FIRST = Usage(
    t_s=100.0, cpu_s=7.0, main_cpu_s=5.0, io_bytes=10**6, main_io_bytes=10**5, child_io_bytes=0,
    waits_for_child=False, state="S", in_kernel=False, disk_kib=10**6
)  # fmt: skip


def judged(**changes: object) -> str:
    """The judgement on a rank that waits for a peer, and that peer with these changes."""
    return judge([WAITING, dataclasses.replace(IDLE, **changes)])[0]  # type: ignore[arg-type]


def did(seconds: float = 2.0, **more: object) -> str | None:
    """What a rank is said to have done that used so much more after some seconds."""
    numbers = {k: getattr(AT_FIRST, k) + v for k, v in more.items() if isinstance(v, int | float)}
    words = {k: v for k, v in more.items() if isinstance(v, str) or v is True}
    before = dataclasses.replace(AT_FIRST, **words)
    return work(before, dataclasses.replace(before, t_s=100.0 + seconds, **numbers | words))


def test_nothing_moves_on_a_job_whose_ranks_all_wait() -> None:
    assert judged() == "still"


# -- by the kernel's counters --------------------------------------------------------------------


def test_a_rank_that_computes_on_a_crowded_machine_is_busy_on_a_small_share_of_a_cpu() -> None:
    assert did(cpu_s=0.6) and did(cpu_s=0.12)
    assert judged(did="used 0.06 CPUs") == "busy"


def test_a_rank_that_wants_a_cpu_and_gets_none_is_busy() -> None:
    assert did(state="R")


def test_a_rank_that_queues_for_a_cpu_is_measured_by_the_time_in_which_it_had_one() -> None:
    assert did(cpu_s=0.06) is None
    assert did(cpu_s=0.06, queued_s=1.2)
    assert did(io_bytes=30_000) is None
    assert did(io_bytes=30_000, queued_s=1.2)
    assert did(queued_s=1.2) is None, "a poll that naps for a while, and queues for longer"
    assert did(queued_s=1.9)


def test_what_a_process_queues_for_a_cpu_is_counted() -> None:
    """One that naps and computes by turns, of the least weight, on a core that others keep busy."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    turns = (
        f"import os, time; os.sched_setaffinity(0, [{core}]); os.nice(19); print(flush=True)\n"
        "while True: time.sleep(0.01); sum(range(20_000))"
    )
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    starved = subprocess.Popen([sys.executable, "-c", turns], stdout=subprocess.PIPE)
    try:
        assert starved.stdout is not None
        starved.stdout.readline()
        before = usage(starved.pid)
        time.sleep(3.0)
        after = usage(starved.pid)
        assert before is not None and after is not None
        assert after.queued_s - before.queued_s > 1.5
        assert work(before, after)
    finally:
        for process in (*others, starved):
            process.kill()
            process.communicate()


def test_a_rank_that_polls_in_short_naps_beside_a_metrics_thread_does_nothing() -> None:
    assert did(cpu_s=0.06, main_cpu_s=0.04, io_bytes=20_000, main_io_bytes=2_000) is None
    assert judged(cpu_share=0.03, main_cpu_share=0.02, frames_changed=True) == "still"


def test_reading_a_file_is_work_and_a_trickle_is_work_of_the_main_thread_only() -> None:
    assert did(io_bytes=10_000_000)
    assert did(main_io_bytes=10_000, io_bytes=10_000)
    assert did(io_bytes=10_000) is None


def test_a_trickle_of_the_child_that_a_rank_waits_for_is_its_own() -> None:
    assert did(child_io_bytes=16_000, io_bytes=16_000, waits_for_child=True)
    assert did(child_io_bytes=16_000, io_bytes=16_000) is None  # a tracker beside the training


def test_a_wait_for_a_disk_is_work_as_long_as_the_disk_works() -> None:
    assert did(in_kernel=True, disk_kib=4096)
    assert did(in_kernel=True) is None
    assert did(disk_kib=4096) is None


# -- by what the captures show -------------------------------------------------------------------


def test_a_rank_in_a_sleep_that_ends_is_asleep_and_one_that_sleeps_for_hours_is_still() -> None:
    assert judged(wakes_in_s=12.0) == "asleep"
    assert judged(wakes_in_s=7200.0) == "still"


@pytest.mark.parametrize("wakes_in_s", [0.8, 0.0, -0.5])
def test_a_sleep_that_ends_any_moment_is_no_hang(wakes_in_s: float) -> None:
    assert judged(wakes_in_s=wakes_in_s) == "asleep"


def test_a_sleep_that_should_have_ended_long_ago_is_no_sleep() -> None:
    assert judged(wakes_in_s=-30.0) == "still"


def test_a_rank_that_has_slept_away_its_credit_is_still() -> None:
    asleep = dataclasses.replace(IDLE, wakes_in_s=12.0)
    assert judge([asleep], nap_credit_s=20.0)[0] == "asleep"
    assert judge([asleep], nap_credit_s=5.0)[0] == "still"


def test_two_naps_in_a_row_are_a_poll_and_no_sleep() -> None:
    now = {"t_mono_ns": 9 * 10**9}
    first = process(sleeps_until_mono_ns=10 * 10**9)
    assert same_nap(first, process(now, sleeps_until_mono_ns=12 * 10**9)) is None
    assert same_nap(first, process(now, sleeps_until_mono_ns=10 * 10**9)) == 1.0
    assert same_nap(process(), process(now)) is None


def test_a_new_sleep_that_is_longer_than_the_looks_are_apart_counts_for_a_while() -> None:
    """A rank that asks a server again, with a pause that grows: the looks saw the end of one and the next."""
    sleeps = [("call", "/home/u/train.py", 28)]
    first = process(t_mono_ns=7 * 10**9, sleeps_until_mono_ns=8 * 10**9)
    second = process(t_mono_ns=9 * 10**9, sleeps_until_mono_ns=17 * 10**9)
    assert naps(first, second, sleeps) == (None, 8.0)
    assert naps(first, dataclasses.replace(second, sleeps_until_mono_ns=10 * 10**9), sleeps) == (None, None)
    again = dataclasses.replace(IDLE, helper_wakes_in_s=8.0, silent_s=9.0)
    assert judge([again])[0] == "asleep"
    assert judge([again], nap_credit_s=300.0 - 62.0)[0] == "still"


def test_the_nap_of_a_child_counts_where_the_rank_waits_for_its_children() -> None:
    first = process(children=[{"pid": 7, "sleeps_until_mono_ns": 12 * 10**9}, {"pid": 8}])
    second = dataclasses.replace(first, t_mono_ns=2 * 10**9)
    assert same_nap(first, second, children=second.children) == 10.0
    assert same_nap(first, second) is None  # a tracker that sleeps beside the training
    woke = process(t_mono_ns=2 * 10**9, children=[{"pid": 7, "sleeps_until_mono_ns": 13 * 10**9}])
    assert same_nap(first, woke, children=woke.children) is None


WAIT = [("Condition.wait", "/lib/python3.11/threading.py", 331), ("run", "/home/u/train.py", 15)]


def in_wait(**more: object) -> KernelProcess:
    threads = [{"tid": 5}, {"tid": 6, "sleeps_until_mono_ns": 30 * 10**9}]
    return process({"pid": 5, "threads": threads, **more})


def test_a_wait_for_an_event_with_a_time_limit_is_a_sleep_that_ends() -> None:
    first, second = (in_wait(t_mono_ns=t * 10**9, waits_until_mono_ns=12 * 10**9) for t in (7, 9))
    assert naps(first, second, WAIT)[0] == 3.0
    assert naps(first, dataclasses.replace(second, waits_until_mono_ns=15 * 10**9), WAIT)[0] is None
    # torch polls with limits of its own: its peers, or its loader's workers.
    polls = [WAIT[0], ("_try_get_data", "/lib/torch/utils/data/dataloader.py", 1243), WAIT[1]]
    assert naps(first, second, polls)[0] is None
    assert naps(first, second, [("wait", "/lib/torch/distributed/x.py", 1), WAIT[1]])[0] is None


def test_a_timer_that_has_not_rung_counts_as_one_that_sleeps() -> None:
    """Other threads wait for a lock with a limit because they serve: for the next record, or the next second."""

    def at(seconds: int) -> KernelProcess:
        return in_wait(
            t_mono_ns=seconds * 10**9, threads=[{"tid": 5}, {"tid": 6, "waits_until_mono_ns": 30 * 10**9}]
        )

    assert naps(at(7), at(9), WAIT, timers={6}) == (None, 21.0)
    assert naps(at(7), at(9), WAIT) == (None, None)


def test_a_timer_waits_in_its_own_run() -> None:
    def is_one(*between: tuple[str, str]) -> bool:
        return is_timer(
            [StackFrame(name=name, filename=at, line=1) for name, at in (*inner, *between, *outer)]
        )

    file = "/lib/python3.12/threading.py"
    inner = [("Condition.wait", file), ("Event.wait", file)]
    outer = [("Thread._bootstrap_inner", file), ("Thread._bootstrap", file)]
    assert is_one(("Timer.run", file))
    assert not is_one(("Monitor.run", "/lib/tqdm/_monitor.py"))
    assert not is_one(("beat", "/home/u/train.py"), ("Thread.run", file))
    # Python 3.10 names no class.
    inner, outer = [("wait", file), ("wait", file)], [("_bootstrap_inner", file)]
    assert is_one(("run", file))


def test_a_thread_that_sleeps_counts_for_a_while_where_the_main_thread_waits_for_threads() -> None:
    found = naps(in_wait(t_mono_ns=7 * 10**9), in_wait(t_mono_ns=9 * 10**9), WAIT)
    assert found == (None, 21.0)
    computes = [("step", "/home/u/train.py", 3)]
    assert naps(in_wait(t_mono_ns=7), in_wait(t_mono_ns=9), computes)[1] is None
    waits = dataclasses.replace(IDLE, helper_wakes_in_s=21.0, silent_s=9.0)
    assert judge([waits])[0] == "asleep"
    assert judge([dataclasses.replace(waits, silent_s=0.0)])[0] == "still"  # nobody knows since when
    assert judge([waits], nap_credit_s=300.0 - 45.0)[0] == "still"  # one that naps for ever may not matter


def test_a_task_that_sleeps_in_the_event_loop_of_another_thread_counts_for_a_while() -> None:
    """A thread that fetches by asyncio, and backs off from a server that refuses."""
    first, second = (
        in_wait(t_mono_ns=t * 10**9, threads=[{"tid": 5}, {"tid": 6, "wait_limit_s": limit_s}])
        for t, limit_s in ((7, None), (9, 4.0))
    )
    assert naps(first, second, WAIT, loops={6}) == (None, 4.0)
    assert naps(first, second, WAIT) == (None, None)  # a thread of torch, that asks again and again
    often = in_wait(t_mono_ns=9 * 10**9, threads=[{"tid": 6, "wait_limit_s": 0.5}])
    assert naps(first, often, WAIT, loops={6}) == (None, None)
    assert naps(first, second, [("step", "/home/u/train.py", 3)], loops={6})[1] is None


def test_the_nap_of_a_child_counts_for_a_while_where_an_event_loop_waits_for_whatever_comes() -> None:
    loop = [("select", "/lib/selectors.py", 468), ("_run_once", "/lib/asyncio/base_events.py", 1884)]
    first = process(pid=5, t_mono_ns=7 * 10**9, children=[{"pid": 6, "sleeps_until_mono_ns": 30 * 10**9}])
    second = dataclasses.replace(first, t_mono_ns=9 * 10**9)
    assert naps(first, second, loop) == (None, 21.0)
    assert naps(first, second, loop[:1]) == (None, None)  # a socket that somebody else waits for


def test_a_wait_with_a_limit_counts_as_long_as_one_such_wait_can_last() -> None:
    waits = [("select", "/lib/selectors.py", 468), ("_run_once", "/lib/asyncio/base_events.py", 1884)]
    known = process(wait_limit_s=20.0)
    assert limit_s(known, known, waits) == 20.0
    assert limit_s(known, process(), waits) is None
    assert (
        limit_s(known, known, [*waits[:1], ("_try_get_data", "/lib/torch/utils/data/dataloader.py", 1)])
        is None
    )
    # A store's key, that a peer has to set: torch waits in C, and the probe around it is the innermost of Python.
    key = [("get", "/lib/nsadiag/worker/probes/collectives.py", 301), ("main", "/home/nsadiag/train.py", 9)]
    assert limit_s(known, known, key) is None
    assert limit_s(known, known, key[1:]) == 20.0
    waits_for_it = dataclasses.replace(IDLE, limit_s=20.0)
    assert judge([dataclasses.replace(waits_for_it, silent_s=9.0)])[0] == "asleep"
    assert judge([dataclasses.replace(waits_for_it, silent_s=25.0)])[0] == "still"  # asks again and again
    assert judge([waits_for_it])[0] == "still"  # nobody knows since when
    minute = dataclasses.replace(IDLE, limit_s=60.0, silent_s=8.0)
    assert judge([minute], nap_credit_s=300.0 - 8.0)[0] == "asleep"


def test_the_kernel_says_until_when_a_lock_is_waited_for() -> None:
    program = "import threading; print(flush=True); threading.Event().wait(50)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        deadline = time.monotonic() + 10.0
        while waits_until(process.pid) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        limit_ns = waits_until(process.pid)
        process.kill()
    if sys.version_info < (3, 11):
        pytest.skip("its locks wait by the other clock")
    assert limit_ns and 30 < limit_ns / 1e9 - time.monotonic() < 51


def test_a_glance_that_was_torn_names_no_line() -> None:
    assert is_torn(StackFrame(name="f", filename="__doc__", line=-15073507))
    assert is_torn(StackFrame(name="f", filename="/home/u/train.py", line=-1))
    assert not is_torn(StackFrame(name="f", filename="<string>", line=0))


def test_a_rank_whose_peers_wait_with_a_time_limit_is_not_asleep() -> None:
    assert judge([dataclasses.replace(WAITING, wakes_in_s=30.0), IDLE])[0] == "still"


def test_a_rank_that_spins_in_a_collective_does_not_count_as_busy() -> None:
    spinning = dataclasses.replace(
        WAITING, cpu_share=1.0, main_cpu_share=1.0, did="used 1.00 CPUs", frames_changed=True
    )
    judgement, reason = judge([spinning, IDLE])
    assert (judgement, "rank 0 spins" in reason) == ("still", True)


def test_a_rank_that_computes_on_while_a_collective_is_under_way_is_busy() -> None:
    overlapping = dataclasses.replace(
        WAITING, main_cpu_share=0.9, frames_changed=True, functions_changed=True
    )
    assert judge([overlapping, IDLE])[0] == "busy"


def test_any_event_on_any_rank_is_progress() -> None:
    assert judged(events=1) == "progress"
    assert judged(collectives=1) == "progress"


# -- GPUs: recorded documents, since no GPU is here ----------------------------------------------


def gpu(pid: int, utilisation: float, sm: float | None = None) -> dict[str, object]:
    process = {"pid": pid, "memory_mib": 61_000, "sm_pct": sm}
    device = {"index": 0, "uuid": "GPU-6a0f", "utilisation_pct": utilisation, "memory_used_mib": 61_500}
    return {"devices": [{**device, "processes": [process]}]}


def test_a_gpu_that_works_for_a_rank_without_a_collective_is_work() -> None:
    assert gpu_pct(gpu(4711, 98.0), 4711) == 98.0
    assert judged(gpu_pct=98.0) == "busy"
    assert judged(gpu_pct=0.0) == "still"


def test_on_a_shared_gpu_the_share_of_the_process_counts() -> None:
    assert gpu_pct(gpu(4711, 98.0, sm=0.0), 4711) == 0.0
    assert gpu_pct(gpu(4711, 98.0), 4712) is None
    assert gpu_pct({}, 4711) is None


def test_a_process_of_which_the_driver_has_no_sample_leaves_the_gpu_to_its_neighbours() -> None:
    document = gpu(4711, 98.0)
    document["devices"][0]["processes"].append({"pid": 4712, "memory_mib": 500, "sm_pct": 60})
    assert gpu_pct(document, 4711) == 0.0
    assert gpu_pct(document, 4712) == 60.0


def nccl(rank: int, seq: int, state: str, name: str = "all_reduce", **more: object) -> dict[str, object]:
    return {
        "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0, "retired": state == "completed",
        "profiling_name": f"nccl:{name}", "input_sizes": [[1024]], "state": state, "rank": rank, **more,
    }  # fmt: skip


OTHER_GROUP = ["1", "mesh_tp"]


@pytest.mark.parametrize(
    ("mine", "theirs", "waits"),
    [
        ([nccl(0, 7, "completed")], [nccl(1, 7, "completed")], False),  # its own kernels
        ([nccl(0, 7, "started")], [nccl(1, 6, "completed")], True),  # a collective that spins
        ([nccl(0, 7, "scheduled")], [nccl(1, 6, "completed")], True),  # its peer withholds it
        ([nccl(0, 7, "scheduled")], [nccl(1, 7, "scheduled")], False),  # both stand behind kernels that run
        # Its peer has something else to finish first.
        ([nccl(0, 7, "scheduled")], [nccl(1, 6, "scheduled"), nccl(1, 7, "scheduled")], True),
        (
            [nccl(0, 7, "scheduled"), nccl(0, 3, "scheduled", process_group=OTHER_GROUP)],
            [nccl(1, 3, "scheduled", process_group=OTHER_GROUP), nccl(1, 7, "scheduled")],
            True,
        ),
        (
            [nccl(0, 7, "scheduled", input_dtypes=["Float"])],
            [nccl(1, 7, "scheduled", input_dtypes=["Half"])],
            True,
        ),
        # Members may have different shares of an exchange.
        (
            [nccl(0, 7, "scheduled", "all_to_all", input_sizes=[[5]])],
            [nccl(1, 7, "scheduled", "all_to_all", input_sizes=[[9]])],
            False,
        ),
        # Two ends of a transfer, and two sides that both receive.
        ([nccl(0, 0, "scheduled", "recv 0<-1")], [nccl(1, 0, "scheduled", "send 1->0")], False),
        ([nccl(0, 0, "scheduled", "recv 0<-1")], [nccl(1, 0, "scheduled", "recv 1<-0")], True),
        # The parts of a batch that is over have no state of their own.
        (
            [nccl(0, 0, "scheduled", "recv 0<-1", op_id=4), nccl(0, 0, "completed", "coalesced", op_id=4)],
            [],
            False,
        ),
    ],
)
def test_a_busy_gpu_is_no_work_where_a_collective_spins_on_it(
    mine: list[dict[str, object]], theirs: list[dict[str, object]], waits: bool
) -> None:
    dumps = {0: {"entries": mine}, 1: {"entries": theirs}}
    assert (0 in held_up(dumps, {0, 1})) is waits
    busy = dataclasses.replace(WAITING, gpu_pct=100.0, waits_for_peers=waits)
    assert judge([busy, IDLE])[0] == ("still" if waits else "busy")


def test_a_rank_alone_in_a_call_that_no_recorder_has_yet_waits_for_those_who_do_not_come() -> None:
    """The first collective makes NCCL's communicator, spinning."""
    assert 0 in joining({0: "all_reduce", 1: None}, {0, 1})
    assert 0 in joining({0: "all_reduce", 1: "irecv"}, {0, 1})
    assert 0 in joining({0: "all_reduce"}, {0, 1})  # the dead do not come either
    assert 0 not in joining({0: "all_reduce", 1: "all_reduce"}, {0, 1})
    assert 1 not in joining({0: "all_reduce", 1: None}, {0, 1})


def test_of_ten_thousand_ranks_in_one_collective_all_are_asked_once() -> None:
    everyone = set(range(10_000))
    config = {"0": {"ranks": str(sorted(everyone))}}
    dump = {"entries": [nccl(0, 6, "completed"), nccl(0, 7, "scheduled")], "pg_config": config}
    queue = queue_of(dump)
    assert len(str(queue)) < 1000
    queues = dict.fromkeys(everyone, queue)
    assert held_up(queues, everyone) == set()
    assert held_up({**queues, 77: {"entries": []}}, everyone) == everyone - {77}


# -- over some seconds, on a real process --------------------------------------------------------


def followed(script: str, until: float) -> list[float]:
    """Seconds at which a process that says `up` when it begins was seen to work."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    activity, started, found = Activity(), time.monotonic(), []
    try:
        while time.monotonic() < started + until:
            if activity.sample({0: process.pid}):
                found.append(time.monotonic() - started)
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    return found


LOAD = """
import sys, time
print("up", flush=True)
while True:
    until = time.perf_counter() + {busy_s}
    while time.perf_counter() < until:
        pass
    time.sleep(2 - {busy_s})
"""


@pytest.mark.slow
def test_a_burst_now_and_then_is_no_work_and_a_steady_load_is() -> None:
    bursts, steady = followed(LOAD.format(busy_s=0.04), 8.0), followed(LOAD.format(busy_s=1.0), 8.0)
    # The first burst of a silence may be anything.
    assert [moment for moment in bursts if moment > 4.0] == []
    assert [moment for moment in steady if moment > 4.0]


def at(t_s: float, written: int) -> Usage:
    return Usage(
        t_s=t_s, cpu_s=1.0, main_cpu_s=1.0, io_bytes=written, main_io_bytes=written, child_io_bytes=0,
        waits_for_child=False, state="S", in_kernel=False, disk_kib=0,
    )  # fmt: skip


def test_what_was_done_since_the_last_sample_is_seen_though_none_was_due() -> None:
    activity = Activity()
    assert activity.note({0: at(10.0, 0), 1: None}) == set()
    assert activity.note({0: at(17.2, 49_152)}) == {
        0
    }  # three pieces of a file, the last of them somewhere in between
    assert (activity.worked, activity.did) == ({0: 17.2}, {0: "read or wrote 49,152 bytes"})
    assert activity.note({0: at(19.3, 49_152)}) == set()


def thread(name: str | None, *functions: str) -> PythonThread:
    return looks.thread([(function, "train.py", 1) for function in functions], thread_name=name)


def test_a_hook_that_runs_on_autograds_thread_is_where_the_rank_works() -> None:
    main = thread("MainThread", "_engine_run_backward", "backward", "main")
    own = thread("uploader", "wait", "_upload", "run", "_bootstrap_inner", "_bootstrap")
    hook = thread(None, "histogram", "<lambda>")
    names = [frame.name for frame in where_it_works((main, own, hook))]
    assert names == ["histogram", "<lambda>", "_engine_run_backward", "backward", "main"]
    assert where_it_works((main, own)) == main.frames
    elsewhere = thread("MainThread", "forward", "main")
    assert where_it_works((elsewhere, hook)) == elsewhere.frames
    assert where_it_works((hook,)) == ()


def test_a_child_that_a_rank_waits_for_is_busy_on_what_a_crowded_machine_leaves_it() -> None:
    assert judged(cpu_share=0.04, child_cpu_share=0.04) == "busy"
    assert judged(cpu_share=0.04) == "still"  # a tracker beside the training
    assert judged(cpu_share=0.02, child_cpu_share=0.02) == "still"
    assert judged(cpu_share=0.04, child_cpu_share=0.04, stopped=True) == "still"


def test_what_the_children_of_a_stopped_rank_do_is_no_work_of_its() -> None:
    assert judged(did="a child of it used 0.30 CPUs") == "busy"
    assert judged(did="a child of it used 0.30 CPUs", stopped=True) == "still"
    # Stopped at both looks, and not in between: a throttle.
    assert judged(did="used 0.30 CPUs", stopped=True, main_cpu_share=0.3) == "busy"
