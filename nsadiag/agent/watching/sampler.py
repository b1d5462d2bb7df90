"""Samples of stacks, taken now and then without a pause: they name the line that a slow rank spends its time in."""

from __future__ import annotations

import contextlib
import json
import resource
import time

from nsadiag.agent.captures.python.nonblocking_stacks import NonblockingStacks
from nsadiag.agent.captures.target import CaptureError
from nsadiag.evidence.documents.python_stacks import StackFrame, Threads, frames_of_main
from nsadiag.evidence.layout import RankDir, open_private

MIN_INTERVAL_S = 0.5
# A sample that took t of CPU time is followed by 20 t without one, which is 5 % of one CPU, and each by 10 t more than the one
# before: a job of half a minute has a dozen, and one of hours does not pay for what nobody will ask.
PAUSE_PER_COST, MORE_EACH_TIME = 20, 10
AT_MOST = 400  # samples a rank
MOST_LINES = 10**7  # of a file

Frames = tuple[StackFrame, ...]


class Sampler:
    """Decides when the next sample is due, and appends what it shows to samples.jsonl."""

    def __init__(self, stacks: NonblockingStacks | None = None) -> None:
        self._stacks = stacks or NonblockingStacks()
        self._next = time.monotonic() + MIN_INTERVAL_S
        self._taken = 0

    def sample(self, ranks: dict[RankDir, int]) -> None:
        """One sample of each of `ranks` (directory to pid), if it is due."""
        if time.monotonic() < self._next or not ranks or self._taken >= AT_MOST:
            return
        began_s = _cpu_s()
        for directory, pid in ranks.items():
            # A process that ends meanwhile, or a stack that was torn, is no loss: there will be others.
            with contextlib.suppress(CaptureError, OSError, ValueError):
                self._append(directory, self._stacks.at(directory.rank, pid))
        pause = PAUSE_PER_COST + MORE_EACH_TIME * self._taken
        self._taken += 1
        self._next = time.monotonic() + max(MIN_INTERVAL_S, pause * (_cpu_s() - began_s))

    def _append(self, directory: RankDir, threads: Threads) -> None:
        frames = where_it_works(threads)
        if not frames or any(is_torn(frame) for frame in frames):
            return
        line = (
            json.dumps(
                {
                    "t_mono_ns": time.monotonic_ns(),
                    "frames": _rows(frames),
                    "beside": _rows(other_lines(threads)),
                }
            )
            + "\n"
        )
        with open_private(directory.samples, "a") as file:
            file.write(line)


def _rows(frames: Frames) -> list[tuple[str, int, str]]:
    return [(frame.filename, frame.line, frame.name) for frame in frames]


def _cpu_s() -> float:
    """CPU time of this thread, and of the children that have ended: on a busy machine the clock would count waiting as cost."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def is_torn(frame: StackFrame) -> bool:
    """Whether it was read while the thread was changing it: a sample does not stop the process."""
    return not (0 <= frame.line <= MOST_LINES and any(mark in frame.filename for mark in "/<."))


def where_it_works(threads: Threads) -> Frames:
    """The main thread's frames, innermost first; on top of them those of autograd's own thread, if backward is there.

    For a GPU's backward torch has a thread in C++, in which Python's hooks run while the main thread waits.
    """
    main = frames_of_main(threads)
    if not main or main[0].name != "_engine_run_backward":
        return main
    others = (thread.frames for thread in threads if not thread.is_main)
    # A thread of Python's own begins in threading.py; py-spy may name the class, too.
    return next((f + main for f in others if f and not f[-1].name.endswith("_bootstrap")), main)


def other_lines(threads: Threads) -> Frames:
    """The frames of a thread of the user's own that has the interpreter while the main thread trains."""
    frames = next((thread.frames for thread in threads if thread.owns_gil and not thread.is_main), ())
    return frames if frames and frames[-1].name.endswith("_bootstrap") else ()
