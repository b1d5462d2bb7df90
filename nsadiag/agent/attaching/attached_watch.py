"""The watch over a job that nsadiag did not start: it looks, answers, and leaves the job as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nsadiag.agent.attaching.recorder_pipe import dump_by_pipe
from nsadiag.agent.captures.capturing import capture_slow
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.processes import Process
from nsadiag.agent.stillness.judgement import Judgement
from nsadiag.agent.stillness.motion import Motion, joined
from nsadiag.agent.watching.state import LOOKS_APART_S, Answer, Pair, RankState, WatchOptions
from nsadiag.agent.watching.watch import POLL_S, Watch
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.user_code import count_as_well, roots_in

# A first pair of snapshots answers at once; where it does not settle the matter a second one makes up for the silence that
# nobody listened to beforehand.
FIRST_APART_S, APART_S = 0.5, 5.0
PLAIN_SHARE = 0.5  # of a CPU: whoever uses that much needs no second pair
FOLLOW_EVERY_S, FOLLOW_PER_COST = (
    5.0,
    5.0,
)  # between pairs of one that stays: seconds, and times what the last one took


@dataclass(kw_only=True)
class AttachedJob:
    """Somebody else's job: asked for nothing, and never ended."""

    socket_dir: Path
    run_id: str = ""
    ended: dict[int, int] = field(default_factory=dict)

    def poll(self) -> int | None:
        return None

    def roots(self) -> list[Process]:
        return []

    def family(self) -> set[Process]:
        return set()

    def reported_ends(self) -> dict[int, int]:
        return self.ended

    def ending(self) -> None:
        return

    def abandon(self) -> None:
        raise AssertionError("a job that we attached to is not ours to end")


State = Literal["proven", "suspected", "progressing", "unobserved"]
STATES: dict[Judgement, State] = {
    "progress": "progressing",
    "busy": "progressing",
    "asleep": "progressing",
    "unobserved": "unobserved",
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """The answer to whoever attached, in a word and a sentence."""

    state: State
    says: str

    def is_news_after(self, told: Told | None) -> bool:
        """Whether it says more than the last answer: what a job does that progresses is no news."""
        return (
            told is None
            or self.state != told.state
            or (self.state != "progressing" and self.says != told.says)
        )


Tell = Callable[[Told], None]


class AttachedWatch(Watch):
    """Looks, and writes down what it saw; the job goes on as it was."""

    def __init__(
        self,
        job: AttachedJob,
        directory: RunDir,
        ranks: Iterable[RankState],
        *,
        on_stuck: Callable[[], Answer | None] | None = None,
    ) -> None:
        super().__init__(job, directory, WatchOptions(on_hang="leave"), on_stuck=on_stuck)
        self.ranks = {rank.directory.rank: rank for rank in ranks}
        # What was recorded before we came is no movement of now.
        for rank in self.ranks.values():
            count_as_well(roots_in(read_json(rank.directory.meta)))
            if rank.progress:
                rank.progress.advance()

    def attach(self, tell: Tell) -> None:
        """The answer, in watch.json and ends.json: `tell` hears it as soon as there is one, and again if it changes."""
        try:
            first = self._looked(FIRST_APART_S)
            tell(first)
            if not self._is_plain(first):
                second = self._looked(APART_S)
                if second.is_news_after(first):
                    tell(second)
            if self.stopped:
                capture_slow([self.captures.target(rank, self.captures.count) for rank in self._alive()])
            self.write()
        finally:
            self.close()

    def follow(self, tell: Tell) -> None:
        """Looks again and again until no rank is left, or Ctrl-C; `tell` hears of each change."""
        for rank in self._alive():
            if rank.process:
                self._deaths.add(rank.process)
        told: Told | None = None
        try:
            while self._alive():
                began = time.monotonic()
                now = self._looked(LOOKS_APART_S)
                if now.is_news_after(told):
                    tell(now)
                    told = now
                due = time.monotonic() + max(FOLLOW_EVERY_S, FOLLOW_PER_COST * (time.monotonic() - began))
                while self._alive() and time.monotonic() < due:
                    self._note_deaths(POLL_S)
        finally:
            self.write()
            self.close()

    def _looked(self, apart_s: float) -> Told:
        """One pair of captures, judged; the verdict on a job that stands still is on disk."""
        still = self.look(apart_s) == "still"
        self.stopped = "hang" if still else None
        self.write()
        answer = self._on_stuck() if self._on_stuck else None
        if still and answer:
            return Told(state=answer.certainty, says=answer.says)
        state: State = "suspected" if still else STATES[self.looks[-1].judgement]
        return Told(state=state, says=f"{self.looks[-1].reason}.")

    def _is_plain(self, told: Told) -> bool:
        if told.state == "proven" or self.looks[-1].judgement == "progress":
            return True
        working = (m for m in self.looks[-1].motions if m["cpu_share"] > PLAIN_SHARE)
        return self.looks[-1].judgement == "busy" and any(not m["waits_for_peers"] for m in working)

    def _answer(self, capture: int) -> None:
        """Nobody is stopped, so that nothing is to be decided here."""

    def _joined(self, pair: Pair) -> list[Motion]:
        """Nobody watched before: it may have stood there since yesterday."""
        return joined(pair.stances, set(self.ranks))

    def _capture(self) -> int:
        number = super()._capture()
        for rank in self._alive():
            capture = rank.directory.capture(number)
            if rank.process and not capture.flight_recorder.exists():
                try:
                    dump_by_pipe(rank.process.pid, rank.directory.rank, capture)
                except (CaptureError, OSError) as error:
                    gaps = read_json(capture.gaps, [])
                    write_json(capture.gaps, [*gaps, {"capture": "fr_pipe", "gap": str(error)}])
        return number

    def _about(self) -> dict[str, Any]:
        newest = [r.progress.pulse.last() for r in self.ranks.values() if r.progress]
        moments = [int(last["t_ns"][0]) for last in newest if last is not None]
        last_s = (max(moments) - self._started_ns) / 1e9 if moments else None
        return {**super()._about(), "attached": True, "last_progress_s": last_s}
