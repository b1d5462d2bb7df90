"""The journal of a step's operations, in their order: one row a step that is looked at (invariants.jsonl).

All ranks look at the same steps, which follow from their number alone: the first ones, and from then on as many as the
sums of replicas. A row is written when its step is over and what a GPU computes of it has come, a few steps later at most.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.correctness.invariants.later import Later, later
from nsadiag.worker.probes.looks import is_look
from nsadiag.worker.recorder import Recorder

FIRST = {False: 4, True: 16}  # steps that are all looked at, with values and without
MOST_OPERATIONS = 300  # of one row
MOST_ROWS = 120
PATIENCE = 8  # steps for which a row waits for a GPU
Operation = dict[str, Any]
Coming = list[tuple[Later, Callable[[float], None]]]  # and what notes it


class Journal:
    """Operations of the step that runs now."""

    def __init__(self) -> None:
        self.waits = False  # whether a GPU is waited for, as the probe `invariants` asks for
        self.looking = True
        self.looks = 0  # steps that were looked at before this one
        self.wakes_at = 0  # the next step that is looked at
        self._operations: list[Operation] = []
        self._coming: Coming = []  # of the step that runs now
        self._rows = 0
        # Rows of steps that are over, with what they wait for, the oldest first.
        self.waiting: list[tuple[int, list[Operation], Coming]] = []

    @property
    def valued(self) -> bool:
        """Whether tensors are read: always where that waits for no GPU."""
        return self.waits or not any(gpu.is_initialized() for gpu in (torch.cuda, torch.xpu))

    def note(
        self, kind: str, place: str | None = None, always: Recorder | None = None, **details: Any
    ) -> Operation:
        """Adds an operation at the user's line that runs now, or at `place`; details that say nothing are left out.

        `always`: the recorder for what is written at once where the step is not looked at.
        """
        found = user_place() if place is None else place
        operation = {
            "kind": kind,
            "place": found,
            **{k: v for k, v in details.items() if v not in (None, "", [])},
        }
        if always is not None and not self.looking:
            self._write(always, always.box.step, [operation])
        elif len(self._operations) < MOST_OPERATIONS:
            self._operations.append(operation)
        return operation

    def read_later(self, number: torch.Tensor, note: Callable[[float], None]) -> None:
        """Has `note` called with a number on a GPU, where that comes in time."""
        if (coming := later(number)) is not None:
            self._coming.append((coming, note))

    def turn(self, rank: Recorder, step: int, *, begins: int) -> None:
        """Step `step` is over, and `begins` is the next."""
        if self._operations:
            self.waiting.append((step, self._operations, self._coming))
        self._operations, self._coming = [], []
        self.write_what_has_come(rank, begins)
        self.looks += self.looking
        self.looking = self._rows < MOST_ROWS and self._is_look(begins)
        self.wakes_at = begins + 1
        while not self._is_look(self.wakes_at):
            self.wakes_at += 1

    def stop(self) -> None:
        """No later step is looked at."""
        self.looking, self.wakes_at, self._operations, self._coming = False, sys.maxsize, [], []

    def _is_look(self, step: int) -> bool:
        return step < FIRST[self.valued] or is_look(step)

    def write_what_has_come(self, rank: Recorder, now: int) -> None:
        """Writes the rows whose numbers are all there, in their order."""
        while self.waiting:
            step, operations, coming = self.waiting[0]
            if not all(number.has_come() for number, _ in coming) and now < step + PATIENCE:
                return
            del self.waiting[0]  # first: a row that cannot be written is not tried again
            for number, note in coming:
                if number.has_come():
                    note(number.value())
            self._write(rank, step, operations)

    def _write(self, rank: Recorder, step: int, operations: list[Operation]) -> None:
        if self._rows < MOST_ROWS:
            self._rows += 1
            append_json_line(rank.directory.invariants, {"step": step, "operations": operations})

    def clear(self) -> None:
        """As at the start. Rows that still wait are lost: probes are taken out where nobody watches the rank any more."""
        self.waits, self.looking, self._operations, self._rows, self.looks = False, True, [], 0, 0
        self._coming, self.waiting = [], []


journal = Journal()


def current() -> Recorder | None:
    """The recorder of a rank that has peers, or None."""
    rank = session.current()
    return rank if rank is not None and rank.world_size > 1 else None
