"""The recorder of one rank: its ring of events, the names in them, and what could not be observed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns, time_ns
from typing import Any

from nsadiag.evidence.layout import RING_DIR, RankDir, append_json_line
from nsadiag.evidence.ring.blackbox import BlackBox, Counter, Kind, Phase
from nsadiag.evidence.ring.names import CHUNKS_IN_MEMORY, DEFAULT_CHUNKS
from nsadiag.worker.descriptors import opened_high
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.place import Places

CHECKED_EVERY = (
    64  # steps: whether the descriptors of ours are still what they were; a rest is not ended for it
)
# Plain integers: reading a member of an enumeration costs as much as half the event.
_STEP, _POINT = int(Kind.STEP), int(Phase.POINT)


class Recorder:
    """The state of one rank: its ring of events and what the probes share."""

    def __init__(self, directory: RankDir, rank: int, world_size: int) -> None:
        self.directory = directory
        self.rank = rank
        self.world_size = world_size
        memory = os.environ.get(RING_DIR)
        with opened_high():
            self.box = BlackBox(
                directory.blackbox,
                rank=rank,
                world_size=world_size,
                chunks=CHUNKS_IN_MEMORY if memory else DEFAULT_CHUNKS,
                memory=Path(memory) if memory else None,
            )
        self.names = self.box.names
        self.places = Places(self.names)
        self._gaps = 0
        self.emit = self.box.emit
        self.silenced = False
        self.step_name = 0  # of the events that end a step
        self._lost = 0
        self._check_at = CHECKED_EVERY  # the step
        self.checks: list[Callable[[], None]] = []  # made every so many steps
        self.keep: list[Any] = []  # what must live as long as the process: files, servers, hook handles

    def gap(self, what: str) -> None:
        """Records what could not be observed, in one appended line; where even that fails, nothing more can be done."""
        if self.silenced:
            return
        self._gaps += 1
        self.box.count(Counter.GAPS, self._gaps)
        with tolerated(Exception):
            append_json_line(self.directory.gaps, {"t_wall_ns": time_ns(), "gap": what})

    def step_ended(self) -> None:
        """The events that follow belong to the next step."""
        box = self.box
        box.step = step = box.step + 1
        box.count_steps(step)
        if self._lost != self.names.lost:
            self._lost = self.names.lost
            box.count(Counter.NAMES_LOST, self._lost)
        if step >= self._check_at:
            self._check_at = step + CHECKED_EVERY
            for check in self.checks:
                check()
        self.emit(_STEP, _POINT, self.step_name, step, process_time_ns())

    def renumber(self, directory: RankDir, rank: int, world_size: int) -> None:
        """It is another rank than it was taken for, and its files are elsewhere."""
        self.directory, self.rank, self.world_size = directory, rank, world_size
        self.box.renumber(rank, world_size)

    def silence(self) -> None:
        """In a forked child: the parent's ring, names and sockets are not ours to write to."""
        self.silenced = True
        self.box.silence()
