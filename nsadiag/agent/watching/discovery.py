"""Finds the ranks of a job: they announce themselves by their black box, and nobody has to say how many there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nsadiag.agent import processes
from nsadiag.agent.namespaces import pid_of
from nsadiag.agent.processes import End
from nsadiag.agent.watching.progress import Progress
from nsadiag.agent.watching.state import RankState
from nsadiag.evidence.layout import RankDir, RunDir, read_json
from nsadiag.evidence.ring.reader import Pulse
from nsadiag.evidence.user_code import count_as_well, roots_in

PAUSES = 10.0  # times as long as a search took, there is none


class Discovery:
    """Keeps `ranks` (by number) up to date with what lies in the run's directory."""

    def __init__(
        self, directory: RunDir, ranks: dict[int, RankState], is_here: Callable[[dict[str, Any]], bool]
    ) -> None:
        """`is_here` says of a meta.json whether that rank is on this machine; those that are not are passed over."""
        self._directory, self._ranks, self._is_here = directory, ranks, is_here
        self._next = 0.0
        self._elsewhere: set[int] = set()

    def search(self, *, at_once: bool = False) -> list[RankState]:
        """Ranks that are new, or were started anew, if a search is due or wanted `at_once`."""
        began = time.monotonic()
        if began < self._next and not at_once:
            return []
        for number in list(self._ranks):
            self._forget_if_another(number)
        found = [rank for each in self._directory.ranks() if (rank := self._new(each))]
        self._ranks.update({rank.directory.rank: rank for rank in found})
        # On a shared file system ten thousand ranks may lie beside ours.
        self._next = began + PAUSES * (time.monotonic() - began)
        return found

    def look_everywhere(self) -> None:
        """A rank has died: a launcher that starts its ranks anew may have others here than before."""
        self._elsewhere.clear()

    def _new(self, directory: RankDir) -> RankState | None:
        known = self._ranks.get(directory.rank)
        if (known is not None and known.end is None) or directory.rank in self._elsewhere:
            return None
        meta = read_json(directory.meta)
        # A dead rank whose file names another process has been restarted by its launcher.
        if not meta or "pid" not in meta or (known is not None and known.pid == meta["pid"]):
            return None
        if not self._is_here(meta):
            self._elsewhere.add(directory.rank)
            return None
        try:
            pulse = Pulse(directory.blackbox)
        except (OSError, ValueError):
            return None
        count_as_well(roots_in(meta))
        process = processes.identify(pid_of(meta))
        progress = Progress(pulse, meta["pid"])
        progress.advance()
        return RankState(
            directory=directory,
            pid=meta["pid"],
            process=process,
            progress=progress,
            end=None if process else End(t_mono_ns=time.monotonic_ns()),
            guessed=bool(meta.get("guessed")),
        )

    def _forget_if_another(self, number: int) -> None:
        """A process that was taken for this rank may have said meanwhile that it is another."""
        known = self._ranks[number]
        if known.guessed and known.end is None:
            meta = read_json(known.directory.meta)
            if meta and meta.get("pid") == known.pid:
                known.guessed = bool(meta.get("guessed"))
            else:
                del self._ranks[number]
