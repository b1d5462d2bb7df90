"""The suspicion that a job hangs: raised by a verdict that is not certain, withdrawn when a rank moves again."""

from __future__ import annotations

import time

from nsadiag.agent.watching.state import Notices, Suspicion

CONFIRM_S = 1.0  # from a rank's move, in which one that is on its way out writes its exception or ends


class Suspicions:
    """Those of one job, of which one stands at most."""

    def __init__(self, notices: Notices | None, started: float) -> None:
        self.all: list[Suspicion] = []
        self._notices, self._started = notices, started
        self._standing: Suspicion | None = None
        self._unsaid: tuple[Suspicion, float] | None = None  # a withdrawn one, and the silence before

    def count_from(self, started: float) -> None:
        """The job had begun by then, on the monotonic clock."""
        self._started = started

    @property
    def stands(self) -> bool:
        return self._standing is not None

    @property
    def unsaid(self) -> bool:
        """Whether one was withdrawn, and nobody has heard of it yet."""
        return self._unsaid is not None

    def suspect(self, says: str, quiet_s: float, patience_s: float) -> None:
        """A silence of `quiet_s` is suspected to be a hang, unless it is already."""
        if self._standing is not None:
            return
        self._standing = Suspicion(t_s=self._now_s(), quiet_s=quiet_s, says=says)
        self.all.append(self._standing)
        if self._notices:
            self._notices.suspected(self._standing, patience_s)

    def withdraw(self, quiet_s: float) -> None:
        """A rank has moved after a silence of `quiet_s`: no hang after all.

        It is said a moment later: a rank that is interrupted, or gives up, moves once more before it ends.
        """
        if self._standing is not None:
            self._standing.withdrawn_s = self._now_s()
            self._unsaid = self._standing, quiet_s
            self._standing = None

    def confirm(self, *, at_once: bool = False) -> None:
        """Says what was withdrawn a moment ago."""
        if self._unsaid is None:
            return
        suspicion, quiet_s = self._unsaid
        if at_once or self._now_s() - (suspicion.withdrawn_s or 0.0) > CONFIRM_S:
            self._unsaid = None
            if self._notices:
                self._notices.withdrawn(suspicion, quiet_s)

    def drop(self) -> None:
        """Forgets the one that stands, neither borne out nor withdrawn, and says nothing of one just withdrawn."""
        self._standing = self._unsaid = None

    def _now_s(self) -> float:
        return time.monotonic() - self._started
