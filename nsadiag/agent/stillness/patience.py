"""The length of silence after which a job is worth a look: learnt from the job's own pauses."""

from __future__ import annotations

import os
from collections.abc import Callable

from nsadiag.agent.stillness.judgement import Judgement

MIN_STALL_S = 5.0
CROWDED = 2.0  # runnable threads a core, from which on everything takes longer than it does on a machine of one's own
MOST_CROWDED = 6.0  # times as patient, at most
RHYTHM_MULTIPLE = 3.0  # a pause this many times the longest one so far is worth a look
# A suspected hang is taken for one after a silence this many times the job's longest pause, and never before so long.
SUSPICION_MULTIPLE = 10.0
MIN_SUSPICION_S = 120.0
LOOK_AGAIN_S = 30.0  # at the latest: a rank that spins is told from one that works by a look alone


def crowding() -> float:
    """The factor by which things take longer on this machine than usual, by the load of the last minute; 1 if it is not crowded."""
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(max(load / CROWDED, 1.0), MOST_CROWDED)


class Patience:
    """Two clocks, of the last event and of the last thing that moved at all, and what they teach.

    Moments are monotonic seconds, given by the caller. `fixed_s` None means: learn. `expected_s` is the longest pause
    that jobs like this one were seen to make: it stands beside the job's own, and never shortens anything.
    `crowding` says how many times as long as usual things take at the moment, by the machine's load, and `slowed` how many
    times they take the ranks themselves, once that is known.
    """

    def __init__(
        self,
        fixed_s: float | None,
        now: float,
        *,
        expected_s: float = 0.0,
        crowding: Callable[[], float] = lambda: 1.0,
        slowed: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.moved = self.stirred = now  # last event; last event or work
        self.longest_s = 0.0  # pause without event or work since the first steps
        self.longest_start_s = 0.0  # and between the first event and then
        self._fixed_s, self._expected_s = fixed_s, expected_s
        self._crowding, self._slowed = crowding, slowed
        self._began = False
        self._pause_s = 0.0  # the longest in the present silence
        self._looked = False
        self._not_before_s = self._at_last_s = 0.0  # of silence: when the next look is due, after one

    def quiet_s(self, now: float) -> float:
        """Since the last event."""
        return now - self.moved

    def idle_s(self, now: float) -> float:
        """Since the last event, or work that was seen from outside."""
        return now - self.stirred

    def limit_s(self) -> float:
        """Seconds in which nothing moves, after which the job is worth a look."""
        if self._fixed_s is not None:
            return self._fixed_s
        longest_s = max(self.longest_s, self._pause_s, self._expected_s)
        return max(MIN_STALL_S * self.times(), RHYTHM_MULTIPLE * longest_s)

    def times(self) -> float:
        """As long as usual that things take here at the moment."""
        slowed = self._slowed()
        return self._crowding() if slowed is None else min(slowed, MOST_CROWDED)

    def suspicion_s(self) -> float:
        """Seconds of silence after which a suspected hang is taken for one."""
        longest_s = max(self.longest_s, self.longest_start_s, self._pause_s, self._expected_s)
        return max(MIN_SUSPICION_S * self._crowding(), SUSPICION_MULTIPLE * longest_s)

    def progress(self, now: float, *, settled: bool) -> None:
        """An event. `settled`: start-up and the first steps are over, so that pauses are the job's rhythm."""
        if self._began and not settled:
            self.longest_start_s = max(self.longest_start_s, self.idle_s(now))
        self._began = True
        self.stir(now, now, settled=settled)
        self.moved, self._pause_s, self._looked = now, 0.0, False

    def stir(self, began: float, now: float, *, settled: bool) -> None:
        """Something worked between these two moments."""
        pause = max(began - self.stirred, 0.0)
        # A rank that trickles in bursts has a rhythm of its own, which holds for this silence only.
        self._pause_s = max(self._pause_s, pause)
        if settled:
            self.longest_s = max(self.longest_s, pause)
        self.stirred = max(self.stirred, now)

    def stood_since(self, moment: float) -> None:
        """Takes back what looked like work of a rank that spins: nothing has moved since then."""
        self.stirred = max(self.moved, min(self.stirred, moment))

    def due(self, now: float) -> bool:
        """Whether it is time for a look."""
        if not self._looked:
            return self.quiet_s(now) > self.limit_s()
        quiet = self.quiet_s(now)
        idle = self.idle_s(now) > self.limit_s()
        return quiet >= self._at_last_s or (quiet >= self._not_before_s and idle)

    def looked(
        self,
        judgement: Judgement,
        now: float,
        *,
        nap_s: float = 0.0,
        in_sight: bool = True,
        saw_work: bool = False,
    ) -> None:
        """A look came to this. `in_sight`: the work can be followed without a look, so that its end will be seen.

        `saw_work`: the look itself did. One that is called busy for what was done before it is no work, or each look would
        lengthen the pause that the next one is measured by.
        """
        self._looked = True
        if saw_work and not in_sight:
            self.stir(now, now, settled=False)
        quiet = self.quiet_s(now)
        again = quiet + min(max(quiet, MIN_STALL_S), LOOK_AGAIN_S)
        if judgement == "asleep":
            # A sleeper gets the time it asked for, and a little to say so.
            again = quiet + nap_s + MIN_STALL_S
            in_sight = False
        self._at_last_s = again
        self._not_before_s = quiet if in_sight else again
