"""Messages on stderr for a person who waits for a silent job."""

from __future__ import annotations

import sys

from nsadiag.agent.watching.state import Suspicion

FIRST_S = 15.0  # of silence; after it, each time there has been twice as much


class Lines:
    """A line whenever a silence has a new meaning: it goes on, a hang is suspected, or the job continues after all."""

    def __init__(self) -> None:
        self._told_s = 0.0  # the silence at the last line

    def quiet(self, quiet_s: float, seen: str) -> None:
        if quiet_s < self._told_s:
            self._told_s = 0.0  # another silence
        if quiet_s < max(FIRST_S, 2 * self._told_s):
            return
        self._told_s = quiet_s
        _say(
            f"no step for {quiet_s:.0f} s, and no sign of a hang: {seen}. Ctrl-C ends the job with a verdict."
        )

    def suspected(self, suspicion: Suspicion, patience_s: float) -> None:
        _say(
            f"suspected hang, no progress for {suspicion.quiet_s:.0f} s: {suspicion.says} "
            f"It may still continue, so nothing is stopped before {patience_s:.0f} s of silence (--patience). "
            "Ctrl-C ends the job with a verdict."
        )

    def withdrawn(self, suspicion: Suspicion, pause_s: float) -> None:
        _say(f"no hang: the job continued after {pause_s:.0f} s.")


def _say(text: str) -> None:
    print(f"nsadiag: {text}", file=sys.stderr, flush=True)
