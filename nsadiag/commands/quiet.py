"""Messages for a person who waits for a silent job."""

from __future__ import annotations

import sys

FIRST_S = 15.0  # of silence; after it, each time there has been twice as much


class QuietNotes:
    """A line on stderr when a job has been silent for long, and was looked at, and is not stuck by what was seen."""

    def __init__(self) -> None:
        self._told_s = 0.0  # the silence at the last line

    def __call__(self, quiet_s: float, seen: str) -> None:
        if quiet_s < self._told_s:
            self._told_s = 0.0  # another silence
        if quiet_s < max(FIRST_S, 2 * self._told_s):
            return
        self._told_s = quiet_s
        print(
            f"nsadiag: no step for {quiet_s:.0f} s, and no sign of a hang: {seen}. Ctrl-C ends the job with a verdict.",
            file=sys.stderr,
            flush=True,
        )
