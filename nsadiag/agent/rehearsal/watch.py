"""The watch over a rehearsal: it ends as soon as the coordinator knows that some call can never be made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from nsadiag.agent.rehearsal.coordinator import Coordinator
from nsadiag.agent.stillness.judgement import Judgement
from nsadiag.agent.watching.state import Answer, Look, Pair, RankState
from nsadiag.agent.watching.watch import POLL_S, STOPPED_S, Watch
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.rehearsal.calls import Call

# For the calls of the ranks that are still on their way: what they say decides who is unlike the rest.
GATHER_S = 2.0
# Without any message while every rank waits, where their calls are known to differ.
QUIET_S = 0.05
# After a rank has ended: its peers' calls, and how it ended, arrive behind it.
SETTLE_S = 0.2
# Without any message while every rank waits: long enough for threads that are about to call.
STILL_S = 0.8
# Without any message while some rank announces nothing: its own loop may have no end. Each time twice as long.
ASTRAY_S = 4.0
DIFFER = "calls that belong together differ"
APART_S = 0.1  # between two snapshots of ranks that all wait
PROVEN_APART_S = 0.02  # of ranks whose calls are known to be unmatched
TICK_S = 0.02  # between two questions to the coordinator


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The reason for which some calls can never be made."""

    why: str
    calls: tuple[Call, ...]


class RehearsalWatch(Watch):
    """Asks the coordinator in each round; a silence without open calls is judged as in any job."""

    def __init__(self, *args: Any, coordinator: Coordinator, speaks: bool = True, **more: Any) -> None:
        """`speaks`: the ranks have a launcher of the user's, which says how they ended."""
        super().__init__(*args, **more)
        self.launcher_speaks = speaks
        self._coordinator = coordinator
        self._differs_since: float | None = None
        self._looked = 0.0
        self._astray = (0.0, ASTRAY_S)  # the message that was the last one, and the silence for the next look
        self.proof: Proof | None = None

    def _pass_time(self) -> None:
        """Less than a moment where calls are known to be unmatched: nothing else is waited for then."""
        before = now = time.monotonic()
        while now - before < POLL_S:
            self._note_deaths(TICK_S)
            now = time.monotonic()
            with self._coordinator.lock:
                matching = self._coordinator.matching
                if matching.unanswerable() or matching.difference():
                    break
        if now - before > STOPPED_S:
            self._progress()

    def _is_due(self, alive: list[RankState]) -> bool:
        self.proof = self._proven(alive)
        return self.proof is not None or self._all_wait(alive) or self._is_astray() or super()._is_due(alive)

    def look(self, apart_s: float | None = None) -> Judgement:
        """Two snapshots; what is proven needs no silence in between."""
        # Also where ranks are still awaited when the time is up.
        self.proof = self.proof or self._differing()
        if self.proof is None:
            judgement = super().look(APART_S if self._all_wait(self._alive()) else apart_s)
            self._looked = time.monotonic()
            return judgement
        started = time.monotonic()
        pair = self._pair(PROVEN_APART_S)
        self.looks.append(
            Look(
                t_s=started - self._started,
                first=pair.first,
                second=pair.second,
                judgement="still",
                reason=self.proof.why,
                motions=[dict(vars(motion)) for motion in self._joined(pair)],
            )
        )
        self._answer(pair.second)
        return "still"

    def _pair(self, apart_s: float) -> Pair:
        pair = super()._pair(apart_s)
        for rank in self._alive():
            number = rank.directory.rank
            with self._coordinator.lock:
                dump = self._coordinator.recorder.dump(number)
            write_json(rank.directory.capture(pair.second).flight_recorder, dump)
        return pair

    def _answer(self, capture: int) -> None:
        """Judges a proof once, when it is known how the ranks ended. Native stacks would say nothing of calls never made."""
        if self.proof is None:
            return self._judge()
        self.stopped = "hang"
        return self.suspicions.drop()

    def _is_final(self, answer: Answer) -> bool:
        return self.proof is not None or super()._is_final(answer)

    def _proven(self, alive: list[RankState]) -> Proof | None:
        with self._coordinator.lock:
            matching, now = self._coordinator.matching, time.monotonic()
            quiet_s = now - self._coordinator.heard
            if unanswerable := matching.unanswerable():
                if matching.ended & {rank.directory.rank for rank in alive}:
                    return None  # its connection is closed, and how it ends is not known yet
                failed = any(r.end and (r.end.exit_code or r.end.signal) for r in self.ranks.values())
                # Of ranks that failed the launcher ends the others, and the failure is the answer.
                if quiet_s > SETTLE_S and not failed:
                    return Proof(why="a call needs a rank whose program is over", calls=tuple(unanswerable))
                return None
            if differing := matching.difference():
                self._differs_since = self._differs_since or now
                waiting = {call.rank for call in matching.open_calls()}
                is_complete = waiting >= {rank.directory.rank for rank in alive} and quiet_s > QUIET_S
                if is_complete or now - self._differs_since > GATHER_S:
                    return Proof(why=DIFFER, calls=tuple(differing))
                return None
            self._differs_since = None
        return None

    def _differing(self) -> Proof | None:
        with self._coordinator.lock:
            found = self._coordinator.matching.difference()
        return Proof(why=DIFFER, calls=tuple(found)) if found else None

    def _is_astray(self) -> bool:
        """Whether calls have been made, and for a while none was announced."""
        with self._coordinator.lock:
            heard, met = self._coordinator.heard, self._coordinator.matching.met
        since, limit_s = self._astray
        if since != heard:
            self._astray = (heard, ASTRAY_S)
            return False
        if not met or time.monotonic() - heard < limit_s:
            return False
        self._astray = (heard, 2 * limit_s)
        return True

    def _all_wait(self, alive: list[RankState]) -> bool:
        """Whether every rank has a call open, and none has been heard of for a while: worth a closer look."""
        with self._coordinator.lock:
            waiting = {call.rank for call in self._coordinator.matching.open_calls()}
            heard = self._coordinator.heard
        quiet_s = time.monotonic() - max(heard, self._looked)
        return bool(alive) and quiet_s > STILL_S and waiting >= {rank.directory.rank for rank in alive}
