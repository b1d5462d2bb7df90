"""The watch that the callbacks of all trainers share, from the first hook to the last, and phases that span hooks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import nsadiag

if TYPE_CHECKING:
    from nsadiag.evidence.records import Verdict
    from nsadiag.worker.watched import Watched

UNDER_NSADIAG = "NSADIAG_RUN_DIR"


class Watching:
    """One training, from `begin` to `end`; `options` are those of `nsadiag.watch`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.run: Watched | None = None
        self._options = options
        self._block = ExitStack()
        self._phases: dict[str, ExitStack] = {}
        # Under `nsadiag run` the verdict comes after the job: there is nobody to wait for.
        self._is_judged_here = UNDER_NSADIAG not in os.environ

    def begin(self, model: Any) -> None:
        """Start to watch, unless it is watched already."""
        if self.run is None:
            self.run = self._block.enter_context(nsadiag.watch(model, **self._options))

    def enter(self, name: str) -> None:
        """Begin a phase."""
        stack = self._phases[name] = ExitStack()
        stack.enter_context(nsadiag.phase(name))

    def leave(self, name: str) -> None:
        """End it; without a begin nothing happens."""
        if stack := self._phases.pop(name, None):
            stack.close()

    def end(self) -> Verdict | None:
        """The verdict on rank 0; None on the others, and where it is not known before the job ends."""
        if self.run is None:
            return None
        run, self.run = self.run, None
        for name in [*self._phases]:
            self.leave(name)
        self._block.close()
        if not self._is_judged_here or int(os.environ.get("RANK", "0")) != 0:
            return None
        return run.verdict


def metrics_of(verdict: Verdict | None) -> dict[str, float]:
    """A verdict as numbers for a logger: whether anything was found, how sure it is, and how long peers waited for each rank."""
    if verdict is None:
        return {}
    waits = {f"nsadiag/peer_wait_s/rank_{wait.rank}": wait.total_s for wait in verdict.peer_waits}
    found = verdict.outcome not in ("healthy", "incomplete")
    return {"nsadiag/finding": float(found), "nsadiag/confidence": verdict.confidence, **waits}
