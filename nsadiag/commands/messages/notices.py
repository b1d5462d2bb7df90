"""Messages on stderr for a person who waits for a silent job."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import Suspicion
from nsadiag.commands.messages import first_step
from nsadiag.commands.messages.status_line import StatusLine
from nsadiag.evidence.layout import RunDir
from nsadiag.printing import for_terminal, note

if TYPE_CHECKING:
    from nsadiag.agent.whereabouts import Whereabouts

# The words in which a backend gives up a collective, and those in which torchrun reports the rank that ended first.
TIMEOUT = re.compile(
    rb"Timed out waiting \d+ms|Watchdog caught collective operation timeout|failed to pass monitoredBarrier in"
    rb"|wait timeout after \d+ms|Root Cause \(first observed failure\)"
)
ROOT_CAUSE = b"Root Cause (first observed failure)"  # of torchrun's report; a line of `=` ends it
NO_CAUSE = "the report above is the launcher's, on ranks that nsadiag stopped: it names no cause. The verdict follows."
CONSEQUENCE = "Reports of ranks ended by SIGTERM that follow here are a consequence."
JUST_S = 5.0
WORTH_S = 4.0  # a shorter silence is no news; what is found in it is said again each time there has been twice as much
IN_VAIN = 3  # snapshots that found nothing, after which taking another one is no news
Tell = Callable[[str, str], None]  # the event's name, and the words


class Lines:
    """A line whenever a silence has a new meaning: snapshots, a hang suspected or withdrawn, the job being stopped.

    `tell` hears of suspicions and of their end as well: whoever is notified is told.
    """

    def __init__(
        self, tell: Tell | None = None, *, silent: bool = False, status: StatusLine | None = None
    ) -> None:
        self._status = status
        self._say = (lambda text: None) if silent else self._print
        self._told_s = 0.0  # the silence at the last line
        self._looked = 0  # snapshots reported since the last one that led to something
        self._suspected, self._withdrawn_at = "", math.inf
        self._remarked = silent
        self._ending = self._in_report = False
        self._tell = tell or (lambda event, text: None)

    def started(self, directory: Path) -> None:
        """Says at once that the job is watched, and where the evidence goes."""
        with contextlib.suppress(OSError):  # nobody reads it: the job is started all the same
            self._say(f"watching; evidence goes to {directory}")

    def first_step(self, run: RunDir) -> contextlib.AbstractContextManager[None]:
        """Says, within the block, when every rank has made a step."""
        return first_step.announced(run, self._say)

    def looking(self, quiet_s: float) -> None:
        if quiet_s >= WORTH_S and self._looked < IN_VAIN:
            self._looked += 1
            self._say(f"no progress for {quiet_s:.0f} s: taking two snapshots of every rank.")

    def where(self, found: list[Whereabouts]) -> None:
        from nsadiag.commands.live import where  # tables, which only an interrupt needs

        self._say("\n  ".join(["where the ranks stand:", *where.lines(found)]))

    def quiet(self, quiet_s: float, seen: str) -> None:
        if quiet_s < self._told_s:
            self._told_s = 0.0  # another silence
        if quiet_s < max(WORTH_S, 2 * self._told_s):
            return
        self._told_s = quiet_s
        self._say(
            f"no step for {quiet_s:.0f} s, and no sign of a hang: {seen}. Ctrl-C ends the job with a verdict."
        )

    def suspected(self, suspicion: Suspicion, patience_s: float) -> None:
        self._looked = 0
        self._suspected, self._withdrawn_at = suspicion.says.removesuffix("."), math.inf
        said = f"suspected hang, no progress for {suspicion.quiet_s:.0f} s: {suspicion.says}"
        self._say(
            f"{said} "
            f"It may still continue, so nothing is stopped before {patience_s:.0f} s of silence (--patience). "
            "Ctrl-C ends the job with a verdict."
        )
        self._tell("suspected", said)

    def after(self, output: bytes) -> bytes | None:
        """The line that follows the job's own about a timeout, once: that is where people look."""
        # What a job says that we end is no timeout of its own.
        if self._ending or interrupts.asked():
            return self._after_the_end(output)
        if self._remarked or not TIMEOUT.search(output):
            return None
        self._remarked = True
        # The rank that gives up moves by that, a moment before its words are here.
        holds = bool(self._suspected) and time.monotonic() - self._withdrawn_at < JUST_S
        known = f"suspected before this: {self._suspected}. " if holds else ""
        return for_terminal(f"nsadiag: {known}The verdict follows when the job has ended.\n").encode()

    def _after_the_end(self, output: bytes) -> bytes | None:
        """The line behind the launcher's report on ranks that we ended, once it is whole."""
        self._in_report |= ROOT_CAUSE in output
        if not self._in_report or not output.endswith(b"==\n"):
            return None
        self._in_report = False
        return f"nsadiag: {NO_CAUSE}\n".encode()

    def withdrawn(self, suspicion: Suspicion, pause_s: float) -> None:
        self._withdrawn_at = time.monotonic()
        said = f"no hang: the job continued after {pause_s:.0f} s."
        self._say(said)
        self._tell("withdrawn", said)

    def stopping(self, says: str) -> None:
        self._ending = True
        self._say(
            f"{says} Stopping the job. {CONSEQUENCE}" if says else "nothing moves any more: stopping the job."
        )

    def timed_out(self, timeout_s: float) -> None:
        self._ending = True
        self._say(f"--timeout of {timeout_s:g} s is over: stopping the job. {CONSEQUENCE}")

    def _print(self, text: str) -> None:
        line = f"nsadiag: {text}"
        if sys.stderr is None:
            return  # closed by whoever started us; print would take stdout
        if self._status is None:
            note(line)
            return
        with self._status.output():
            note(self._status.wrapped(line))
