"""One line at the foot of a terminal: how far the job is. It is redrawn while the job prints nothing, and gone when it does."""

from __future__ import annotations

import contextlib
import os
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from nsadiag.agent import interrupts
from nsadiag.commands.messages.first_step import EVERY_S, steps_of, wait_after
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.phrases import rate
from nsadiag.printing import for_terminal
from nsadiag.reports.words import roughly

STDERR = 2
ERASE = b"\r\x1b[K"
SETTLED_S = (
    0.8  # since the job's last output: beneath a job that prints all the time a line would only flicker
)
NO_WIDTH = 80  # columns, where nobody has said
QUIET_S = 5.0  # without a step: worth saying
WINDOW_S = 10.0  # of steps, for their rate
WARM_UP = 2  # steps of each rank that say nothing of its rate: they compile, connect and allocate


class StatusLine:
    """The line, and the rule that nothing else is printed beside it: whoever prints does so within `output`."""

    def __init__(self, descriptor: int = STDERR) -> None:
        self._file = descriptor
        self._lock = threading.RLock()  # taken by a signal handler too
        self._is_on = self._is_drawn = False
        self._writers = 0
        self._at_line_start = True
        self._printed_at = time.monotonic()
        self._phase = ""

    @contextlib.contextmanager
    def output(self, data: bytes = b"\n") -> Iterator[None]:
        """Around everything that is printed; no lock is held meanwhile, as its reader may take its time."""
        with self._lock:
            self._writers += 1
            self._erase()
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1
                self._at_line_start = data.endswith(b"\n")
                self._printed_at = time.monotonic()

    def wrapped(self, text: str) -> str:
        """The text in lines of the terminal's width, wrapped at blanks."""
        return textwrap.fill(
            text, self._width() - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )

    def now(self, phase: str) -> None:
        """From here on the line says this after the job's progress."""
        self._phase = phase

    @contextlib.contextmanager
    def shown(self, words: Callable[[], str]) -> Iterator[None]:
        """Draws the line every second within the block."""
        over = threading.Event()
        self._is_on = True
        thread = threading.Thread(target=self._run, args=(words, over), name="nsadiag-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            with self._lock:
                self._is_on = False
                self._erase()

    def _run(self, words: Callable[[], str], over: threading.Event) -> None:
        wait_s = EVERY_S
        while not over.wait(wait_s):
            began = time.monotonic()
            with contextlib.suppress(OSError, ValueError):
                self._draw(f"{words()}{f', {self._phase}' if self._phase else ''}")
            wait_s = wait_after(began)

    def _draw(self, text: str) -> None:
        with self._lock:
            settled = time.monotonic() - self._printed_at >= SETTLED_S
            if (
                self._writers
                or not self._at_line_start
                or not (settled or self._is_drawn)
                or not self._is_ours()
            ):
                return
            os.write(self._file, ERASE + for_terminal(f"nsadiag: {text}")[: self._width() - 1].encode())
            self._is_drawn = True

    def _width(self) -> int:
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._file).columns or NO_WIDTH
        return NO_WIDTH

    def _is_ours(self) -> bool:
        """Not in the background, and not while the job has the terminal to ask something."""
        return os.tcgetpgrp(self._file) == os.getpgrp()

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            with contextlib.suppress(OSError):
                os.write(self._file, ERASE)


def at_terminal() -> StatusLine | None:
    """One where stderr is a terminal that can redraw a line."""
    able = os.environ.get("TERM", "dumb") not in ("", "dumb")
    return StatusLine() if able and os.isatty(STDERR) else None


class Pace:
    """The job's progress in a few words, from the counters of its ranks."""

    def __init__(self, run: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._started = self._moved = clock()
        self._made = 0  # steps of all ranks
        self._seen: deque[tuple[float, int]] = (
            deque()
        )  # the time, and the steps of all ranks, behind the warm-up

    def elapsed(self) -> str:
        """`1 min 12 s`."""
        return roughly(self._clock() - self._started)

    def words(self) -> str:
        """`1 min 12 s, step 120, 3.2 steps/s`."""
        now, elapsed = self._clock(), self.elapsed()
        if interrupts.asked():
            return elapsed
        steps, world = steps_of(self._run)
        if not steps:
            return f"{elapsed}, starting"
        if len(steps) < world or not all(steps):
            ready = sum(map(bool, steps))
            return f"{elapsed}, {ready} of {max(world, len(steps))} ranks have made a step"
        self._note(now, steps)
        span = f"step {steps[0]}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
        return ", ".join(part for part in (elapsed, span, self._pace(now - self._moved, len(steps))) if part)

    def _pace(self, quiet_s: float, ranks: int) -> str:
        """`3.2 steps/s`; `no step for 6 s` of a job that makes none; nothing before that is known."""
        if not self._seen:
            return f"no step for {roughly(quiet_s)}" if quiet_s >= QUIET_S else ""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        if quiet_s >= QUIET_S or (quiet_s >= EVERY_S and after == before):
            return f"no step for {roughly(quiet_s)}"
        return f"{rate((after - before) / ranks / (last - first))} steps/s" if last - first >= EVERY_S else ""

    def _note(self, now: float, steps: Sequence[int]) -> None:
        made = sum(steps)
        if made != self._made:
            self._made, self._moved = made, now
        if min(steps) <= WARM_UP:
            return
        self._seen.append((now, made))
        while now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
