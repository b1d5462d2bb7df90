"""Events that are progress: those of the threads that train, not those of a heartbeat beside them."""

from __future__ import annotations

from pathlib import Path

from nsadiag.evidence.iterations import Iterations
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Pulse

# A thread that ever wrote one of these trains: in the main thread, in one of Ray's, in one of autograd's own.
TRAINING = {
    Kind.STEP, Kind.FORWARD, Kind.BACKWARD, Kind.MODULE, Kind.GRADIENT, Kind.OPTIMIZER,
    Kind.MODULE_BACKWARD, Kind.RECOMPUTE, Kind.BUCKET, Kind.UNIT, Kind.DATA, Kind.IO, Kind.SCALER,
}  # fmt: skip
BESIDE = {Kind.COLLECTIVE, Kind.PROCESS_GROUP, Kind.MEMORY}  # what a thread that does not train may write
AUTOGRAD = "pt_autograd"  # how torch names the threads of its backward on a GPU


class Progress:
    """One rank's events, sorted into work and what goes on beside it."""

    def __init__(self, pulse: Pulse, pid: int) -> None:
        self.pulse, self.pid = pulse, pid
        self.sequence = 0  # of the newest event seen
        self.steps = 0  # of an optimizer
        self._iterations = Iterations()
        self.worked = 0  # events so far that are progress
        self.beside = 0  # events so far that are not
        self.in_collective = False  # a working thread's newest event is a call that has not returned
        # By thread: fetches from a loader, one behind the other, that ran out before they delivered anything.
        self._in_vain: dict[int, int] = {}
        self._working: set[int] = set()
        self._main_calls = False

    def advance(self) -> bool:
        """Takes in what is new; whether any of it is progress."""
        last = self.pulse.last()
        if last is None or int(last["sequence"][0]) == self.sequence:
            return False
        records = self.pulse.since(self.sequence)
        if not len(records):  # the newest is being written right now
            return False
        self.sequence, self.steps = int(records["sequence"][-1]), int(records["step"][-1])
        rows = [*records[["thread", "kind", "phase", "b"]].itertuples()]
        events = [row[:3] for row in rows if self._delivers(*row)]
        self._learn(events)
        counting = [event for event in events if event[1] not in BESIDE or self._works(event[0])]
        self.worked += len(counting)
        self.beside += len(rows) - len(counting)
        self._iterations.take_all((kind, phase) for _, kind, phase in counting)
        if counting:
            self.in_collective = counting[-1][1:] == (Kind.COLLECTIVE, Phase.BEGIN)
        return bool(counting)

    @property
    def in_vain(self) -> int:
        """The number of fetches in a row, and nothing but these, that ran out before they delivered anything."""
        return max(self._in_vain.values(), default=0)

    def _delivers(self, thread: int, kind: int, phase: int, ran_out: int) -> bool:
        """Whether it is no repetition of a fetch from an empty loader: the first that runs out ends an epoch."""
        if kind != Kind.DATA:
            self._in_vain.pop(thread, None)
            return True
        if phase == Phase.BEGIN:
            return thread not in self._in_vain
        if not ran_out:
            self._in_vain.pop(thread, None)
            return True
        self._in_vain[thread] = self._in_vain.get(thread, 0) + 1
        return self._in_vain[thread] == 1

    @property
    def iterations(self) -> int:
        """Steps of an optimizer; of a loop without one, its iterations."""
        return self.steps or self._iterations.count

    @property
    def iterates_by(self) -> str | None:
        """The kind of event with which an iteration begins, where no optimizer's step ends one."""
        anchor = None if self.steps else self._iterations.anchor
        return anchor.name.lower() if anchor else None

    def _learn(self, events: list[tuple[int, int, int]]) -> None:
        for thread, kind, _ in events:
            if kind in TRAINING:
                self._working.add(thread)
            elif kind == Kind.COLLECTIVE and thread == self.pid:
                self._main_calls = True

    def _works(self, thread: int) -> bool:
        if thread == self.pid or thread in self._working:
            return True
        # Where nobody else trains, whoever calls the collectives does the job.
        return not (self._working or self._main_calls) or self._is_autograd(thread)

    def _is_autograd(self, thread: int) -> bool:
        try:
            found = Path(f"/proc/{self.pid}/task/{thread}/comm").read_text().startswith(AUTOGRAD)
        except OSError:
            return False
        if found:
            self._working.add(thread)
        return found
