"""Workers of a loader that were forked with a lock held: nobody is left in them who could release it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.jobs import wait_until
from support.processes.looks import process

from nsadiag.agent.captures.kernel.sleeping import locked_for_good
from nsadiag.agent.processes import stat_fields
from nsadiag.agent.stillness.judgement import judge
from nsadiag.agent.stillness.lost_workers import lost_worker
from nsadiag.agent.stillness.motion import Motion
from nsadiag.analysis.rules.blocked.dataloader_worker_fault import _locked
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.training import Loader

FORKED = """
import multiprocessing, os, sys, threading, time
lock, of_all = threading.Lock(), multiprocessing.Lock()
lock.acquire(); of_all.acquire()
def beside(wait):
    threading.Thread(target=wait, daemon=True).start()
    lock.acquire()
pid = os.fork()
if pid == 0:
    {}
print(pid, flush=True)
sys.stdin.read()
os.kill(pid, 9)
os.waitpid(pid, 0)
"""
STANDS = {
    "at a lock that its parent's thread held": ("lock.acquire()", True),
    "with another thread that waits for one too": ("beside(threading.Event().wait)", True),
    "at a lock, with a limit": ("lock.acquire(timeout=99)", False),
    "at a lock that its parent may release": ("of_all.acquire()", False),
    "at a lock, beside a thread that sleeps": ("beside(lambda: time.sleep(99))", False),
    "at a pipe": ("os.read(os.pipe()[0], 1)", False),
}


@pytest.mark.parametrize(("does", "locked"), STANDS.values(), ids=STANDS)
def test_a_process_is_locked_for_good_where_no_thread_of_it_can_release_another(
    does: str, locked: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED.format(does)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            if locked:
                wait_until(lambda: locked_for_good(child), "it at the lock")
            else:
                wait_until(lambda: (stat_fields(child) or "?")[0] == "S", "it asleep")
                assert not locked_for_good(child)
        finally:
            parent.stdin.close()
    assert not locked_for_good(child), "it is gone"


LOADER = "/x/torch/utils/data/dataloader.py"
FRAMES = [
    ("select", "/usr/lib/python3.12/selectors.py", 415),
    ("_MultiProcessingDataLoaderIter._try_get_data", LOADER, 1291),
    ("train", "/home/u/train.py", 9),
]
LOADERS = [Loader(place="train.py:3"), Loader(place="train.py:9", workers=(7, 8))]


def look(*locked: int) -> KernelProcess:
    return process(children=[{"pid": pid, "locked_for_good": pid in locked} for pid in (7, 8, 9)])


def test_a_rank_waits_for_a_worker_of_its_loader_that_is_locked_at_both_looks() -> None:
    assert lost_worker(look(8), look(7, 8), FRAMES, LOADERS) == 8
    assert lost_worker(look(7), look(8), FRAMES, LOADERS) is None
    assert lost_worker(look(9), look(9), FRAMES, LOADERS) is None, "no worker of a loader"
    assert lost_worker(look(8), look(8), FRAMES[2:], LOADERS) is None, "it does not wait for a batch"
    assert lost_worker(process(), process(), FRAMES, []) is None


WRITES = Motion(
    rank=0, seconds=2.0, cpu_share=0.01, frames_changed=False, io_bytes=44_000, events=0, collectives=0,
    waits_for_peers=False, did="read or wrote 44,000 bytes", lost_worker=8
)  # fmt: skip


def test_what_other_threads_of_the_rank_write_meanwhile_brings_no_batch() -> None:
    judgement, reason = judge([WRITES])
    assert judgement == "still" and "worker 8" in reason
    assert judge([dataclasses.replace(WRITES, lost_worker=None)])[0] == "busy"


def test_as_long_as_another_worker_computes_or_the_gpu_does_it_is_at_work() -> None:
    assert judge([dataclasses.replace(WRITES, child_cpu_share=0.3)])[0] == "busy"
    assert judge([dataclasses.replace(WRITES, gpu_pct=50.0)])[0] == "busy"


def test_the_verdict_says_so_of_the_worker_that_is_locked() -> None:
    stuck: Any = SimpleNamespace(capture=SimpleNamespace(proc=look(8), source="ranks/00000/captures/02"))
    worker: Any = SimpleNamespace(number=8)
    ((claim, source),) = _locked(stuck, worker).items()
    assert "can release the lock" in claim and source == "ranks/00000/captures/02/proc.json"
    worker.number = 7
    assert _locked(stuck, worker) == {}
