"""One line once every rank has made its first step: from then on silence means something."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from nsadiag.evidence.documents.files import open_evidence
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.phrases import all_of
from nsadiag.evidence.ring.blackbox import HEADER_BYTES, Counter
from nsadiag.evidence.ring.header import read_header

EVERY_S = 1.0
AT_MOST_SHARE = 0.02  # of the time, should reading many headers take long


@contextlib.contextmanager
def announced(run: RunDir, say: Callable[[str], None]) -> Iterator[None]:
    """Within the block the line is said once."""
    over = threading.Event()
    thread = threading.Thread(target=_wait, args=(run, say, over), name="nsadiag-first-step", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _wait(run: RunDir, say: Callable[[str], None], over: threading.Event) -> None:
    started = time.monotonic()
    wait_s = EVERY_S
    while not over.wait(wait_s):
        began = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # a recorder that is being made
            ranks, ready = ready_ranks(run)
            if ranks and ready == ranks:
                say(f"first step done on {all_of(ranks)} within {began - started:.0f} s")
                return
        wait_s = wait_after(began)


def wait_after(began: float) -> float:
    """The pause after a round that began then."""
    return max(EVERY_S, (time.monotonic() - began) / AT_MOST_SHARE)


def ready_ranks(run: RunDir) -> tuple[int, int]:
    """The number of ranks, and of those that have made a step; no ranks before all have opened their recorder."""
    steps, world = steps_of(run)
    return (len(steps), sum(map(bool, steps))) if len(steps) >= world else (0, 0)


def steps_of(run: RunDir) -> tuple[list[int], int]:
    """The steps of each rank that has opened its recorder, and the number of ranks that there are to be."""
    steps, world = [], 0
    for directory in run.ranks():
        with open_evidence(directory.blackbox) as file:
            header = read_header(file.read(HEADER_BYTES))
        if header is not None:
            world = max(world, header.world_size)
            steps.append(header.counters.get(Counter.STEPS, 0))
    return steps, world
