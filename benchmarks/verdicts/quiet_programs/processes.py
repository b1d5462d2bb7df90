"""Quiet phases in which a rank waits for processes that it started."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch
from job import Job, shape
from torch.utils.data import DataLoader, Dataset

FORK = multiprocessing.get_context("fork")
HELPER = "import sys, time\nfor line in sys.stdin:\n time.sleep(float(line))\n print('done', flush=True)"


@shape()
def script_in_a_subprocess(job: Job) -> None:
    if job.is_quiet_one:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({job.seconds})"], check=True)


@shape()
def shell_tool(job: Job) -> None:
    if job.is_quiet_one:
        subprocess.run(["sh", "-c", f"sleep {job.seconds}; echo done"], capture_output=True, check=True)


@shape()
def shell_tool_with_progress(job: Job) -> None:
    if not job.is_quiet_one:
        return
    tool = subprocess.Popen(
        ["sh", "-c", f"for i in 1 2 3; do sleep {job.seconds / 3}; echo $i; done"], stdout=subprocess.PIPE
    )
    assert tool.stdout
    for _ in tool.stdout:
        pass
    tool.wait()


@shape()
def polled_subprocess(job: Job) -> None:
    tool = subprocess.Popen(["sleep", str(job.seconds)]) if job.is_quiet_one else None
    while tool and tool.poll() is None:
        time.sleep(job.draw.choice((0.1, 1.0, 4.0)))


@shape()
def compressed_logs(job: Job) -> None:
    """A tool that computes, for a third of the time."""
    if job.is_quiet_one:
        cpu_s = max(int(job.seconds / 3), 1)
        subprocess.run(["sh", "-c", f"timeout {cpu_s} gzip -9 </dev/zero >/dev/null"], check=False)


def _tokenize(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@shape()
def pool_of_tokenizers(job: Job) -> None:
    if job.is_quiet_one:
        with FORK.Pool(2) as pool:
            pool.map(_tokenize, [job.seconds / 2] * 4, chunksize=1)


@shape()
def executor_of_processes(job: Job) -> None:
    if job.is_quiet_one:
        with ProcessPoolExecutor(2, mp_context=FORK) as pool:
            sum(pool.map(_tokenize, [job.seconds / 3] * 6))


def _produce(rows: Any, seconds: float) -> None:
    for row in range(3):
        time.sleep(seconds / 3)
        rows.put(row)


@shape()
def slow_producer_process(job: Job) -> None:
    if not job.is_quiet_one:
        return
    rows: Any = FORK.Queue()
    producer = FORK.Process(target=_produce, args=(rows, job.seconds))
    producer.start()
    for _ in range(3):
        rows.get()
    producer.join()


def _render(end: Connection, seconds: float) -> None:
    time.sleep(seconds)
    end.send("frame")


@shape()
def simulator_on_a_pipe(job: Job) -> None:
    """An environment of reinforcement learning in a process of its own."""
    if not job.is_quiet_one:
        return
    here, there = FORK.Pipe()
    child = FORK.Process(target=_render, args=(there, job.seconds))
    child.start()
    here.recv()
    child.join()


@shape()
def helper_program(job: Job) -> None:
    """A scorer in another interpreter, asked line by line."""
    if not job.is_quiet_one:
        return
    helper = subprocess.Popen(
        [sys.executable, "-c", HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert helper.stdin and helper.stdout
    for share in (0.2, 0.8):
        helper.stdin.write(f"{job.seconds * share}\n")
        helper.stdin.flush()
        helper.stdout.readline()
    helper.communicate()


@shape()
def forked_writer(job: Job) -> None:
    """A child with a copy of the memory writes the checkpoint, and is waited for before the next one."""
    if not job.is_quiet_one:
        return
    child = os.fork()
    if child == 0:
        time.sleep(job.seconds)
        os._exit(0)
    os.waitpid(child, 0)


class Decoded(Dataset):
    """Rows of which one takes long to decode."""

    def __init__(self, seconds: float, slow: int) -> None:
        self.seconds, self.slow = seconds, slow

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds if index == self.slow else 0.01)
        return torch.zeros(64, device="cpu")  # a worker must not touch a GPU


@shape()
def slow_row_in_a_worker(job: Job) -> None:
    slow = job.draw.choice((0, 11)) if job.is_quiet_one else -1
    for _ in DataLoader(Decoded(job.seconds, slow), batch_size=4, num_workers=2):
        job.step()


@shape()
def slow_row_in_the_rank(job: Job) -> None:
    slow = job.draw.choice((0, 11)) if job.is_quiet_one else -1
    for _ in DataLoader(Decoded(job.seconds, slow), batch_size=4):
        job.step()
