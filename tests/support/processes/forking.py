"""A launcher of torch's ranks that forks them: `python forking.py SIZE SCRIPT ARGUMENTS`.

torchrun imports torch for itself, and each of its ranks does so again, with dynamo behind the first optimizer: eight seconds
of a processor for two ranks, against three here. For jobs of tests whose subject is what comes after, whoever the launcher
is. As torchrun does, it names a rank in its environment, ends the others where one fails, and hands a signal on.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NoReturn

FORKING = ("python", __file__)
PRELOAD = ("torch", "torch._dynamo")  # DDP's constructor imports dynamo, and so does an optimizer's


# What a script leaves behind. A model in DDP that is destroyed after its group may hang in torch 2.13, as it would here: a
# script that Python runs has its variables until the process is gone.
_left: list[dict[str, object]] = []


def become(rank: int, job: dict[str, str]) -> None:
    """The script, as Python would run it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(job, RANK=str(rank), LOCAL_RANK=str(rank))
    _left.append(runpy.run_path(sys.argv[0], run_name="__main__"))


def start(size: int) -> list[BaseProcess]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    context = multiprocessing.get_context("fork")
    ranks: list[BaseProcess] = [context.Process(target=become, args=(rank, job)) for rank in range(size)]
    for process in ranks:
        process.start()
    return ranks


def end(ranks: list[BaseProcess]) -> None:
    for process in ranks:
        process.terminate()


def seen_through(ranks: list[BaseProcess]) -> bool:
    """Whether all have ended well; where one has not, the others are ended."""
    living = list(ranks)
    while living:
        wait([process.sentinel for process in living])
        living = [process for process in living if process.exitcode is None]
        if any(process.exitcode for process in ranks):
            end(living)
    return not any(process.exitcode for process in ranks)


def main() -> None:
    gc.disable()  # which takes a fifth of torch's import, and finds that all of it lives on
    for name in PRELOAD:
        __import__(name)
    gc.enable()
    sys.argv = sys.argv[1:]
    ranks = start(int(sys.argv.pop(0)))

    def leave(*_: object) -> NoReturn:
        end(ranks)
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, leave)
    raise SystemExit(not seen_through(ranks))


if __name__ == "__main__":
    main()
