"""The watch over a silence of an armed job: the same looks and the same judgement as everywhere, and nobody is ever ended."""

from __future__ import annotations

from nsadiag.agent.armed.followed import ends_seen
from nsadiag.agent.job.launch import ForeignJob
from nsadiag.agent.watching.unlaunched import end_by_goodbyes
from nsadiag.agent.watching.watch import Watch

SUSPECTED_S = 300.0  # of silence, before which a hang that is not proven is none


class ArmedWatch(Watch):
    """One silence: over when somebody moves, when nobody lives, or when it is taken for a hang."""

    job: ForeignJob
    _before = (0, 0)  # ranks and their events when it began

    def begin(self, quiet_since: float) -> None:
        """Nobody has moved since that moment, on the monotonic clock; what was worked meanwhile nobody saw."""
        self._discover(at_once=True)
        for number, (pid, end) in ends_seen(self.directory.path).items():
            rank = self.ranks.get(number)
            if rank is not None and rank.pid == pid:
                rank.end = end
        self._before = self._events()
        self.patience.moved = min(self.patience.moved, quiet_since)
        pulses = [rank.progress.pulse for rank in self.ranks.values() if rank.progress]
        # Times are those since the job began, and not since somebody looked.
        self._started_ns = min((pulse.header.monotonic_ns for pulse in pulses), default=self._started_ns)
        self._started = self._started_ns / 1e9
        self.suspicions.count_from(self._started)

    @property
    def has_moved(self) -> bool:
        """Whether any rank has got on since it began, or a new one has come."""
        return self._events() != self._before

    def _events(self) -> tuple[int, int]:
        return len(self.ranks), sum(rank.progress.worked for rank in self.ranks.values() if rank.progress)

    def _round(self) -> bool:
        over = super()._round()
        return over or (self.has_moved and not self.suspicions.unsaid)

    def _feel_pulses(self) -> None:
        super()._feel_pulses()
        end_by_goodbyes(self.ranks.values())
        self.job.over = all(rank.end is not None for rank in self.ranks.values())

    def _patience_s(self) -> float:
        """Longer than where somebody waits: nobody asked. It still precedes NCCL's watchdog, which ends a job after ten minutes."""
        return max(super()._patience_s(), SUSPECTED_S)

    def _end_everything(self) -> None:
        """Nothing: it is not ours."""
