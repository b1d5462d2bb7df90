"""A clock that is put forward instead of sleeping: a rehearsal does not wait for what only time brings.

A rank that sleeps while nothing else of it runs skips the sleep, and its clocks show the time after it; its peers' follow
when they next meet it. One that sleeps at a line again and again polls for something real, and sleeps for real.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from nsadiag.evidence.rehearsal import SLEEPS
from nsadiag.worker.rehearsal import touched
from nsadiag.worker.rehearsal.link import Link

SHORT_S = 0.02  # sleeps up to this are slept
STEP_S = 0.01  # what is slept of a longer one, for others to run
LONGER = 3  # times as long as it asks for a real one takes: all ranks share one machine
MOST_SKIPPED = 3  # in a row at one line, without a call in between
OURS = "nsadiag"


def install(link: Link) -> None:
    """From here on `time.sleep` of this process is skipped where it may be, unless sleeps are to be real."""
    sleep, skipped, calls = time.sleep, Counter[tuple[str, int]](), 0
    is_real = os.environ.get(SLEEPS) == "real"

    def skip(seconds: float) -> None:
        nonlocal calls
        touched.slept()
        caller = sys._getframe(1)
        place = (caller.f_code.co_filename, caller.f_lineno)
        if calls != link.calls:
            calls = link.calls
            skipped.clear()
        skipped[place] += 1
        if seconds <= SHORT_S or skipped[place] > MOST_SKIPPED or not _is_alone():
            sleep(seconds)
        elif is_real:
            sleep(seconds * LONGER)
        else:
            sleep(STEP_S)
            link.ahead_s += seconds - STEP_S

    clocks = {name: _ahead(getattr(time, name), link) for name in ("time", "monotonic", "perf_counter")}
    vars(time).update({"sleep": skip, **clocks})


def _is_alone() -> bool:
    """Whether nothing but this thread could do anything meanwhile."""
    others = [t for t in threading.enumerate() if t is not threading.current_thread()]
    return all(thread.name.startswith(OURS) for thread in others)


def _ahead(clock: Callable[[], float], link: Link) -> Callable[[], float]:
    return lambda: clock() + link.ahead_s
