"""The core of an engine: threads take requests and give answers by ZeroMQ, and a worker computes, told by a flag in shared memory."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from multiprocessing.shared_memory import SharedMemory

import zmq
from common import CASE, QUIET_S, SHARED, begun

FREE, ASKED, DONE = range(3)


def address(name: str) -> str:
    return f"ipc://{SHARED}/{name}.ipc"


class Core:
    """Requests that have come and answers that are to go, and the block by which the worker is asked."""

    def __init__(self) -> None:
        self.requests: queue.Queue = queue.Queue()
        self.outputs: queue.Queue = queue.Queue()
        self.context = zmq.Context()
        self.block = SharedMemory(SHARED.name, create=True, size=16)

    def take(self) -> None:
        asks = self.context.socket(zmq.PULL)
        asks.connect(address("asks"))
        while True:
            self.requests.put(asks.recv_pyobj())

    def give(self) -> None:
        answers = self.context.socket(zmq.PUSH)
        answers.connect(address("answers"))
        while True:
            number, value = self.outputs.get()
            if CASE == "output_thread_dies" and number == 3:
                begun()
                value = value / 0
            if CASE == "slow_output" and number == 3:
                begun()
                time.sleep(QUIET_S)
            answers.send_pyobj((number, value))

    def step(self, value: float) -> float:
        self.block.buf[1] = int(value) % 256
        self.block.buf[0] = ASKED
        while self.block.buf[0] != DONE:
            time.sleep(0.05)
        return float(self.block.buf[1])


def work(name: str) -> None:
    """A worker's loop: it computes what it is asked for in the block of that name."""
    block, done = SharedMemory(name), 0
    if CASE == "idle_loop":
        begun()
    while True:
        while block.buf[0] != ASKED:
            time.sleep(0.05)
        done += 1
        if CASE == "worker_in_shm" and done == 3:
            begun()
            threading.Event().wait()
        if CASE == "lost_block" and done == 3:
            begun()
            block.buf[0] = FREE
            continue
        if CASE in ("slow_shm", "drained_update") and done == 3:
            begun()
            time.sleep(QUIET_S)
        block.buf[0] = DONE


def run() -> None:
    core = Core()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(core.block.name,), daemon=True)
    worker.start()
    for each in (core.take, core.give):
        threading.Thread(target=each, daemon=True).start()
    while True:
        number, prompt = core.requests.get()
        core.outputs.put((number, core.step(prompt[0])))
