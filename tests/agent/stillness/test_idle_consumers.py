"""Consumers that wait for work with a time limit, time and again: idle as long as nobody waits for them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.processes.looks import process, thread
from support.recordings.golden import archive_of, unpack

from nsadiag.agent.captures.kernel.sleeping import waits_until
from nsadiag.agent.captures.kernel.spawner import spawner
from nsadiag.agent.stillness.external_waits import ALWAYS_S, PACED_S
from nsadiag.agent.stillness.idle_consumers import LONG_S, idleness
from nsadiag.agent.stillness.judgement import judge
from nsadiag.agent.stillness.motion import Motion, Seen, motion
from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.blocked import hung_ranks, may_be_idle
from nsadiag.analysis.rules.blocked.local_lock_deadlock import _why
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.layout import RunDir

LIB = "/usr/lib/python3.12"
MAIN = ("serve", "/home/u/serve.py", 40)
GET = ("Queue.get", f"{LIB}/multiprocessing/queues.py", 108)
POLL = [
    ("select", f"{LIB}/selectors.py", 415),
    ("wait", f"{LIB}/multiprocessing/connection.py", 1136),
    GET,
]
WAIT = [("Condition.wait", f"{LIB}/threading.py", 359), ("Queue.get", f"{LIB}/queue.py", 180)]
FEED = ("feed", "/home/u/feed.py", 3)
WORKER = [("_bootstrap", f"{LIB}/multiprocessing/process.py", 314)]
BY_TORCHRUN = [("_wrap", "/x/torch/distributed/elastic/multiprocessing/api.py", 700), *WORKER]

CONSUMER = Motion(
    rank=0, seconds=2.0, cpu_share=0.0, frames_changed=True, io_bytes=0, events=0, collectives=0,
    waits_for_peers=False, silent_s=9.0, idle="polls", idle_s=LONG_S
)  # fmt: skip


def proc(t_s: float, *, turns: int = 5, starter: int | None = None, **more: Any) -> KernelProcess:
    """A look at a process; `starter`: how often the one that started it had woken."""
    of_it = {"turns": starter, "cpu_s": 1.0, "family_cpu_s": 1.0, "sleeps_until_mono_ns": []}
    return process(
        t_mono_ns=int(t_s * 1e9), status={"voluntary_ctxt_switches": str(turns)},
        spawner=of_it if starter is not None else None, **more
    )  # fmt: skip


def idle(frames: list[Any], first: Any, second: Any, *others: Any) -> tuple[str | None, float]:
    return idleness(first, second, [*frames, MAIN], [*frames, MAIN], list(others))


def limited(t_s: float, **more: Any) -> KernelProcess:
    """Woken between the looks, and waiting for another second at both."""
    return proc(t_s, turns=int(t_s), waits_until_mono_ns=int((t_s + 0.7) * 1e9), **more)


def test_a_worker_of_a_pool_that_asks_again_and_again_is_idle_as_long_as_its_starter_moves() -> None:
    stack = [GET, MAIN, *WORKER]
    first, second = limited(7.0, starter=10), limited(9.0, starter=14)
    assert idleness(first, second, stack, stack, [])[1] == ALWAYS_S
    # Now at the queue's lock, now at its pipe.
    assert idleness(first, second, [*POLL, MAIN, *WORKER], stack, [])[1] == ALWAYS_S
    quiet = limited(9.0, starter=10)
    assert idleness(first, quiet, stack, stack, [])[1] == LONG_S
    assert quiet.spawner
    starter = dataclasses.replace(quiet.spawner, sleeps_until_mono_ns=(20 * 10**9,))
    sleeps = dataclasses.replace(quiet, spawner=starter)
    assert idleness(first, sleeps, stack, stack, [])[1] == ALWAYS_S
    launched = [GET, MAIN, *BY_TORCHRUN]  # which only watches
    assert idleness(first, second, launched, launched, []) == (None, 0.0)


def test_a_worker_that_waits_without_a_limit_hangs_with_its_starter() -> None:
    stack = [*POLL, MAIN, *WORKER]
    first = proc(7.0, starter=10)
    assert idleness(first, proc(9.0, starter=14), stack, stack, [])[1] == PACED_S
    assert idleness(first, proc(9.0, starter=10), stack, stack, []) == (None, 0.0)


def test_a_wait_that_nobody_is_left_to_answer_is_no_idleness() -> None:
    assert idle(WAIT, limited(7.0), limited(9.0)) == (None, 0.0)
    stuck, feeds = thread([*WAIT, FEED], os_thread_id=7), thread([FEED], os_thread_id=7)
    assert idle(WAIT, limited(7.0), limited(9.0), stuck) == (None, 0.0)
    assert idle(WAIT, limited(7.0), limited(9.0), feeds)[1] == LONG_S
    naps = [{"tid": 7, "sleeps_until_mono_ns": 20 * 10**9}]
    assert idle(WAIT, limited(7.0), limited(9.0, threads=naps), stuck)[1] == LONG_S
    child = [{"pid": 8, "turns": 3}], [{"pid": 8, "turns": 5}]
    asks = [limited(t, children=c) for t, c in zip((7.0, 9.0), child, strict=True)]
    assert idle([GET], *asks)[1] == LONG_S
    assert idle([GET], asks[0], asks[0]) == (None, 0.0)


def test_a_wait_with_a_limit_at_a_socket_or_file_is_idle_whatever_line_waits_there() -> None:
    """`socket.recv` and `select.select` wait in C: the innermost line of Python is the user's own."""
    waits = proc(7.0, wait_limit_s=1.0), proc(9.0, turns=7, wait_limit_s=1.0)
    assert idle([], *waits)[1] == LONG_S
    assert idle([], proc(7.0), proc(9.0, turns=7)) == (None, 0.0)
    store = [("get", "/x/nsadiag/worker/probes/collectives.py", 301)]  # a key that a peer has to set
    assert idle(store, *waits) == (None, 0.0)
    nap = {"pid": 8, "turns": 3, "sleeps_until_mono_ns": 20 * 10**9}
    assert idle([GET], limited(7.0, children=[nap]), limited(9.0, children=[nap]))[1] == LONG_S


def test_a_wait_without_a_limit_or_with_one_of_days_or_of_torchs_is_no_consumers() -> None:
    feeds = thread([FEED], os_thread_id=7)
    assert idle(WAIT, proc(7.0), proc(9.0), feeds) == (None, 0.0)
    day = {"waits_until_mono_ns": 86_400 * 10**9}
    assert idle(WAIT, proc(7.0, **day), proc(9.0, **day), feeds) == (None, 0.0)
    loader = [*WAIT, ("_try_get_data", "/x/torch/utils/data/dataloader.py", 1243)]
    assert idle(loader, limited(7.0), limited(9.0), feeds) == (None, 0.0)


def test_consumers_are_idle_only_where_no_rank_waits_for_peers_or_hangs_beside_them() -> None:
    assert judge([CONSUMER])[0] == "asleep"
    peer = dataclasses.replace(CONSUMER, rank=1, idle=None, idle_s=0.0)
    assert judge([CONSUMER, dataclasses.replace(peer, waits_for_peers=True)])[0] == "still"
    assert judge([CONSUMER, peer])[0] == "still"
    assert judge([CONSUMER, dataclasses.replace(CONSUMER, rank=1)])[0] == "asleep"
    assert judge([dataclasses.replace(CONSUMER, silent_s=LONG_S + 1)])[0] == "still"
    assert judge([dataclasses.replace(CONSUMER, silent_s=3600.0, idle_s=ALWAYS_S)])[0] == "asleep"
    assert judge([CONSUMER], believes_world=False)[0] == "still"


def test_who_may_only_be_idle_is_said_with_half_the_certainty_and_not_where_peers_wait(tmp_path: Any) -> None:
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path)
    watch = json.loads(run.watch.read_text())
    for moved in watch["looks"][-1]["motions"]:
        moved["idle"] = "polls"
    run.watch.write_text(json.dumps(watch))
    cell = load_cell(run.path)
    (blocked,) = hung_ranks(Case(cell))
    assert blocked.waiters and not may_be_idle(cell, blocked)
    alone = dataclasses.replace(blocked, waiters=())
    assert may_be_idle(cell, alone) and "idle consumer" in _why(cell, alone)[1]
    assert _why(cell, alone).strength.value < _why(cell, blocked).strength.value


HELD = """
import multiprocessing as mp, os, sys, time
def child(lock):
    os.write(1, b"up\\n")
    lock.acquire(timeout=50)
if __name__ == "__main__":
    c = mp.get_context(sys.argv[1]); lock = c.Lock(); lock.acquire()
    p = c.Process(target=child, args=(lock,)); p.start()
    os.write(1, f"{p.pid}\\n".encode())
    p.join()
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_the_kernel_says_until_when_a_lock_between_processes_is_waited_for(tmp_path: Any, how: str) -> None:
    (tmp_path / "held.py").write_text(HELD)
    command = [sys.executable, str(tmp_path / "held.py"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout
            said = {process.stdout.readline().strip() for _ in range(2)}
            (pid,) = (int(word) for word in said - {b"up"})
            wait_until(lambda: waits_until(pid), "waits for the lock")
            found = spawner(pid)
            assert found and found["pid"] == process.pid and found["turns"] > 0
            assert spawner(process.pid) is None, "who was started by a shell or a test works for nobody"
        finally:
            os.killpg(process.pid, 9)


POOL = """
import os, queue, torch, torch.multiprocessing as mp
def work(index, tasks):
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    while True:
        try:
            if tasks.get(timeout=0.3) is None:
                return
        except queue.Empty:
            pass
if __name__ == "__main__":
    tasks = mp.get_context("spawn").Queue()
    pool = mp.spawn(work, args=(tasks,), nprocs=2, join=False)
    open(os.environ["GO"]).readline()
    tasks.put(None), tasks.put(None)
    pool.join()
"""


@pytest.mark.slow
def test_a_pool_that_is_given_nothing_for_a_while_is_healthy(jobs: Jobs) -> None:
    (jobs.directory / "pool.py").write_text(POOL)
    process = jobs.start("run", "--json", "--out", "run", "--", "python", "pool.py")
    watched = jobs.directory / "run" / "ranks" / "00000" / "captures" / "02" / "answers.json"
    wait_until(lambda: watched.exists() or process.poll() is not None, "a closer look")
    (jobs.directory / "go").write_text("go\n")
    stdout, stderr = process.communicate(timeout=GIVE_UP_S)
    assert stdout, stderr
    assert json.loads(stdout)["verdict"]["class"] == "healthy", stdout
    # Whatever came in between was still on its way when it was looked at.
    moved = motion(RunDir(path=jobs.directory / "run").rank(0), (1, 2), Seen(), [])
    assert moved and moved.idle_s == LONG_S, "its starter waits as well, for a word of ours"
