"""The current line of ranks that are in no recorded call: asked of the processes in passing, beside the screen that shows them."""

from __future__ import annotations

import threading
from pathlib import Path

from nsadiag.agent.attaching.seeking import sought_in
from nsadiag.agent.whereabouts import whereabouts
from nsadiag.evidence.layout import RunDir

MOST = 8  # ranks a look: each costs a process that reads another's memory


class Lines:
    """Lines of the ranks on this machine. A look takes a moment, so each is of the screen before."""

    def __init__(self, directory: Path) -> None:
        self._run = RunDir(path=directory)
        self._known: dict[int, str] = {}
        self._thread: threading.Thread | None = None

    def of(self, rank: int) -> str:
        """The line as it was seen last; empty where it was not."""
        return self._known.get(rank, "")

    def ask(self, ranks: list[int]) -> None:
        """Begins a look at the first of these, unless the last one is still going on."""
        if not ranks or (self._thread and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._look, args=(set(ranks[:MOST]),), daemon=True)
        self._thread.start()

    def _look(self, ranks: set[int]) -> None:
        sought = [each for each in sought_in(self._run) if each.rank in ranks and each.alive]
        self._known = {found.rank: found.place for found in whereabouts(sought) if found.place}
