"""A wait for a thread of one's own is proven to be for good only where every thread that could end it is seen to wait as well."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.layout import read_json, write_json

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
# The thread has the mutex and wants the interpreter lock, which the main thread has and keeps while it waits for the mutex.
CROSSED = """
    import ctypes, threading, torch

    c, mutex, taken = ctypes.PyDLL(None), ctypes.create_string_buffer(128), threading.Event()

    def take():
        c.pthread_mutex_lock(mutex)
        taken.set()
        threading.Event().wait(0.1)
        c.pthread_mutex_unlock(mutex)

    w = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(6):
        w.square().sum().backward()
        optimizer.step()
    threading.Thread(target=take).start()
    taken.wait()
    c.pthread_mutex_lock(mutex)
"""
# Nothing records this job: the wait for a collective looks, from Python, like the wait for a lock.
WAITS_FOR_A_COLLECTIVE = """
    import os, torch, torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.ones(4)
    if dist.get_rank():
        open(os.environ["SIGNALS"], "w").write("waiting\\n")
        open(os.environ["GO"]).readline()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    os.write(1, f"summed {x.sum().item()}\\n".encode())  # in one piece: both ranks print at once
"""


def script(jobs: Jobs, source: str) -> str:
    (jobs.directory / "train.py").write_text(dedent(source))
    return "train.py"


@pytest.mark.slow
def test_a_mutex_held_by_a_thread_that_wants_the_interpreter_lock_is_a_proven_deadlock(jobs: Jobs) -> None:
    run = jobs.run("run", "--out", "run", "--stall-after", "2", "--", "python", script(jobs, CROSSED))
    assert run.returncode == 1, run.stderr
    found = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert (found["outcome"], found["certainty"]) == ("hung", "proven"), found["summary"]


@pytest.mark.slow
def test_a_wait_for_a_collective_that_nobody_records_is_no_proven_lock(jobs: Jobs) -> None:
    job = subprocess.Popen(
        [*TORCHRUN, script(jobs, WAITS_FOR_A_COLLECTIVE)], cwd=jobs.directory, env=jobs.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert jobs.signals.wait() == "waiting"
    looked = jobs.start("attach", "--out", "looked", str(job.pid))
    looked.communicate(timeout=GIVE_UP_S)
    found = json.loads((jobs.directory / "looked/verdict.json").read_text())
    assert found["certainty"] != "proven", found["summary"]
    jobs.go()
    stdout, _ = job.communicate(timeout=GIVE_UP_S)
    assert stdout.count("summed 8.0") == 2


def with_process(change: Callable[[dict[str, Any]], None], folder: Path) -> str | None:
    """Certainty of a rank that sleeps in C with the interpreter lock, with its proc.json changed."""
    run = unpack(GOLDEN / "gil_held_native_call_join.tar.xz", folder)
    for capture in run.rank(0).captures():
        document = read_json(capture.proc)
        change(document)
        write_json(capture.proc, document)
    return judge(load_cell(run.path)).certainty


def native_thread(**shows: object) -> Callable[[dict[str, Any]], None]:
    row = {"tid": 99999, "state": "S", "cpu_s": 0.1, "name": "client", **shows}
    return lambda document: document["threads"].append(row)


def waits_for_mutex(held_by_python: bool) -> Callable[[dict[str, Any]], None]:
    def changed(document: dict[str, Any]) -> None:
        words = document["syscall"].split()
        document["syscall"] = " ".join([*words[:2], "0x80", "0x2", *words[4:]])
        python = next(
            t["tid"] for t in document["threads"] if t["name"] == "python" and t["tid"] != document["pid"]
        )
        document["mutex_held_by"] = python if held_by_python else None

    return changed


@pytest.mark.parametrize(
    ("change", "certainty"),
    [
        (native_thread(wchan="futex_do_wait"), "proven"),
        (native_thread(wchan="do_epoll_wait"), "suspected"),
        (native_thread(wchan="futex_do_wait", waits_until_mono_ns=1), "suspected"),
        (native_thread(wchan="do_epoll_wait", name="gloo_tcp_loop"), "proven"),
        (waits_for_mutex(held_by_python=True), "proven"),
        (waits_for_mutex(held_by_python=False), "suspected"),
    ],
)
def test_native_threads_that_may_act_leave_it_suspected(
    change: Callable[[dict[str, Any]], None], certainty: str, tmp_path: Path
) -> None:
    assert with_process(change, tmp_path) == certainty
