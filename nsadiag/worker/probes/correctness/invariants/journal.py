"""The journal of a step's operations, in their order: one row a step that is looked at (invariants.jsonl).

All ranks look at the same steps, which follow from their number alone: the first ones, and from then on as many as the
sums of replicas. A row is written when its step is over.
"""

from __future__ import annotations

from typing import Any

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.correctness.replicas import is_look
from nsadiag.worker.recorder import Recorder

FIRST = {False: 4, True: 16}  # steps that are all looked at, with values and without
MOST_OPERATIONS = 300  # of one row
MOST_ROWS = 120
Operation = dict[str, Any]


class Journal:
    """Operations of the step that runs now."""

    def __init__(self) -> None:
        self.valued = False  # whether tensors are read, as the probe `invariants` asks for
        self.looking = True
        self.looks = 0  # steps that were looked at before this one
        self.wakes_at = 0  # the next step that is looked at
        self._operations: list[Operation] = []
        self._rows = 0

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

    def turn(self, rank: Recorder, step: int, *, begins: int) -> None:
        """Step `step` is over, and `begins` is the next."""
        if self._operations:
            self._write(rank, step, self._operations)
        self._operations = []
        self.looks += self.looking
        self.looking = self._rows < MOST_ROWS and self._is_look(begins)
        self.wakes_at = begins + 1
        while not self._is_look(self.wakes_at):
            self.wakes_at += 1

    def _is_look(self, step: int) -> bool:
        return step < FIRST[self.valued] or is_look(step)

    def _write(self, rank: Recorder, step: int, operations: list[Operation]) -> None:
        if self._rows < MOST_ROWS:
            self._rows += 1
            append_json_line(rank.directory.invariants, {"step": step, "operations": operations})

    def clear(self) -> None:
        self.valued, self.looking, self._operations, self._rows, self.looks = False, True, [], 0, 0


journal = Journal()


def current() -> Recorder | None:
    """The recorder of a rank that has peers, or None."""
    rank = session.current()
    return rank if rank is not None and rank.world_size > 1 else None
