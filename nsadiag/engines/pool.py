"""The warm launchers of a matrix: one for each cell that runs at the moment, and a few that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from nsadiag.agent import interrupts
from nsadiag.agent.job.launch import new_run_id
from nsadiag.engines.local import WarmLauncher

# A launcher is two processes with torch in them. One that waits for its environment to come again saves its start.
SPARE = 2
SPARE_NEEDS_MIB = 4096


class LauncherPool:
    """Hands out launchers by environment: ranks are born with what their launcher was started with.

    `before_start` is told the run id that the new launcher's processes will carry, before there are any. To be used
    from one thread.
    """

    def __init__(
        self, log: Path, *, preload: tuple[str, ...], before_start: Callable[[str], None] = lambda _: None
    ) -> None:
        self._log, self._preload, self._before_start = log, preload, before_start
        self._waiting: list[WarmLauncher] = []  # the one that waits longest first
        self._busy: list[WarmLauncher] = []

    def has(self, env: Mapping[str, str]) -> bool:
        """Whether a cell with this environment could start at once."""
        return any(launcher.env == dict(env) for launcher in self._waiting)

    def take(self, env: Mapping[str, str]) -> WarmLauncher:
        """One that waits, or a new one."""
        fitting = next((one for one in self._waiting if one.env == dict(env)), None)
        # An interrupt between its start and its listing would leave nobody to end it.
        with interrupts.held_off():
            if fitting is None:
                self._make_room()
                run_id = new_run_id()
                self._before_start(run_id)
                fitting = WarmLauncher(self._log, preload=self._preload, env=env, run_id=run_id)
            else:
                self._waiting.remove(fitting)
            self._busy.append(fitting)
        return fitting

    def give(self, launcher: WarmLauncher) -> None:
        """It has no cell any more."""
        self._busy.remove(launcher)
        self._waiting.append(launcher)

    def _make_room(self) -> None:
        roomy = psutil.virtual_memory().available / 2**20 > SPARE_NEEDS_MIB
        while len(self._waiting) >= (SPARE if roomy else 1):
            self._waiting.pop(0).close()

    def close(self) -> None:
        """Ends them all, with what they started."""
        with interrupts.held_off():
            for launcher in [*self._busy, *self._waiting]:
                launcher.close()
            self._busy.clear()
            self._waiting.clear()
