"""The rounds of a main thread whose lines are traced: looked at line by line, with what else could end its loop."""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.introspection.loop_values import Values
from nsadiag.worker.place import is_user_code

MOST_LINES = 600
MOST_FRAMES = 32
OURS = "nsadiag"  # how the names of our threads begin
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

Line = tuple[str, str, int]  # file, function, line


class TracedRounds:
    """All that a trace function shows of the thread; `rows` has, by function, each line with the tokens that have changed since the one before."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.shown: list[list[Line]] = []
        self.digests: dict[str, dict[str, list[tuple[int, str]]]] = {}
        self.state = Values()
        self.rows: dict[str, list[tuple[int, dict[str, str]]]] = {}
        self._drawn = _random_states()
        self._told: dict[str, dict[str, str]] = {}

    def at_line(self, innermost: FrameType) -> None:
        """Called in the main thread."""
        if self.done.is_set():
            return
        if len(self.shown) >= MOST_LINES:
            self.done.set()
            return
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < MOST_FRAMES:
            if is_user_code(frame.f_code):
                frames.append(frame)
            frame = frame.f_back
        for number, frame in enumerate(frames):
            if number == 0 or not self.shown:
                self._note(frame)
        self.shown.append([(f.f_code.co_filename, f.f_code.co_name, f.f_lineno) for f in reversed(frames)])

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        function = f"{code.co_filename}:{code.co_name}"
        named = {name: frame.f_globals[name] for name in code.co_names if name in frame.f_globals}
        tokens = self.state.note(function, {**named, **frame.f_locals})
        before = self._told.setdefault(function, {})
        changed = {name: token for name, token in tokens.items() if before.get(name) != token}
        before.update(changed)
        self.rows.setdefault(function, []).append((frame.f_lineno, changed))
        digests = self.digests.setdefault(function, {})
        for name, token in changed.items():
            digests.setdefault(name, []).append((len(self.shown), token))

    def values(self) -> dict[str, dict[str, tuple[list[str], list[str]]]]:
        """By function and variable, the values of the first half and of the second."""
        half = len(self.shown) // 2
        return {
            function: {
                name: (
                    _once(token for number, token in series if number <= half),
                    _once([*[token for number, token in series if number <= half][-1:], *(token for number, token in series if number > half)]),
                )
                for name, series in names.items()
            }
            for function, names in self.digests.items()
        }  # fmt: skip

    def closed(self) -> bool:
        """Whether nothing but the thread's own lines could have changed what they read: no other thread, child, timer or handler, and no random number was drawn."""
        return is_alone() and self._drawn == _random_states()


def _once(tokens: Any) -> list[str]:
    return list(dict.fromkeys(tokens))


def is_alone() -> bool:
    """Whether the main thread alone runs code of the job's in this process, and no process or timer of its own does."""
    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if any(
        not isinstance(each, threading._DummyThread) and not each.name.startswith(OURS) for each in others
    ):
        return False
    if any(signal.getitimer(each)[0] for each in TIMERS):
        return False
    handlers = (signal.getsignal(getattr(signal, name)) for name in SIGNALS)
    if any(is_user_code(code) for each in handlers if (code := getattr(each, "__code__", None))):
        return False
    return _has_no_child()


def _has_no_child() -> bool:
    with tolerated(OSError):
        return not any((task / "children").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return False  # nobody knows


def _random_states() -> tuple[int, ...]:
    """The states of the generators that everybody shares."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    found = [hash(random.getstate())]
    if numpy is not None:
        found.append(hash(numpy.get_state()[1].tobytes() + bytes(str(numpy.get_state()[2]), "ascii")))
    if torch is not None:
        found.append(hash(bytes(torch.get_rng_state().numpy().tobytes())))
    return tuple(found)
