"""A job as the watcher of a node follows it: who lives, who moves, and for how long nobody has.

As little as can be: one glance a second at a counter of each rank. A silence is somebody else's to judge (`armed.watch`).
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.agent.namespaces import pid_of
from nsadiag.agent.processes import End, Process
from nsadiag.agent.watching.progress import Progress
from nsadiag.evidence.layout import RankDir, RunDir, read_own_json, write_json
from nsadiag.evidence.ring.reader import Pulse

ENDS = "seen.json"  # in a job's folder: how ranks ended, as the watcher saw it
# Of silence, after which a job is looked at; in proportion more where it has paused for longer before.
QUIET_S, RHYTHM = 10.0, 2.0
GONE_S = 10.0  # without a living rank, after which it is over: a launcher may be about to start it anew


@dataclass(kw_only=True)
class FollowedRank:
    """One rank; `progress` is None where its ring cannot be read."""

    directory: RankDir
    pid: int
    process: Process | None
    progress: Progress | None
    steps: int = 0
    end: End | None = None


@dataclass(kw_only=True)
class Followed:
    """One job. Moments are monotonic seconds."""

    run: RunDir
    ranks: dict[int, FollowedRank] = field(default_factory=dict)
    moved: float = field(default_factory=time.monotonic)  # the last event of any rank
    longest_s: float = 0.0  # pause of the whole job so far
    alive_at: float = field(default_factory=time.monotonic)

    def glance(self, now: float) -> list[Process]:
        """Notes who came and who moved; returns processes that are new."""
        new = self._discover()
        self._bury(now)
        # All are asked: each has to be caught up with.
        if sum([self._moves(rank) for rank in self.ranks.values() if rank.end is None]) or new:
            self.moves(now)
        if any(rank.end is None for rank in self.ranks.values()):
            self.alive_at = now
        return new

    def _bury(self, now: float) -> None:
        """Those whose death nobody reported: a kernel may have no descriptor of a process to give."""
        for rank in self.ranks.values():
            if rank.end is None and (rank.process is None or not processes.is_alive(rank.process)):
                self.ended_rank(rank, End(t_mono_ns=int(now * 1e9)))

    def moves(self, now: float) -> None:
        """Somebody did at that moment, or nobody could have."""
        self.longest_s = max(self.longest_s, now - self.moved)
        self.moved = now

    def is_due(self, now: float) -> bool:
        """Whether its silence is worth a look."""
        living = any(rank.end is None for rank in self.ranks.values())
        return living and now - self.moved > max(QUIET_S, RHYTHM * self.longest_s)

    def is_over(self, now: float) -> bool:
        return now - self.alive_at > GONE_S

    def ended(self, process: Process, end: End) -> None:
        """A rank has died: what its parent takes away with its zombie is kept for whoever judges."""
        for rank in self.ranks.values():
            if rank.process == process and rank.end is None:
                self.ended_rank(rank, end)

    def ended_rank(self, rank: FollowedRank, end: End) -> None:
        rank.end = end
        self.moves(time.monotonic())
        with contextlib.suppress(OSError):
            self._write_ends()

    def _write_ends(self) -> None:
        document = {
            str(number): {"pid": rank.pid, **vars(rank.end)}
            for number, rank in self.ranks.items()
            if rank.end is not None
        }
        write_json(self.run.path / ENDS, document)

    def _discover(self) -> list[Process]:
        new = []
        for directory in self.run.ranks():
            known = self.ranks.get(directory.rank)
            if known is not None and known.end is None:
                continue
            rank = _rank_in(directory)
            if rank is None or (known is not None and known.pid == rank.pid):
                continue
            self.ranks[directory.rank] = rank
            if rank.process:
                new.append(rank.process)
        return new

    def _moves(self, rank: FollowedRank) -> bool:
        """Whether it has got on: by its steps, which is a glance; by its events only where it has made none."""
        if rank.progress is None:
            return False
        steps = rank.progress.pulse.steps()
        if steps != rank.steps:
            rank.steps = steps
            return True
        return rank.progress.advance()


def _rank_in(directory: RankDir) -> FollowedRank | None:
    """None before it has said who it is."""
    meta = read_own_json(directory.meta)
    if not meta or "pid" not in meta:
        return None
    process = processes.identify(pid_of(meta))
    try:
        progress = Progress(Pulse(directory.blackbox), meta["pid"])
        progress.advance()
    except (OSError, ValueError):
        progress = None
    end = None if process else End(t_mono_ns=time.monotonic_ns())
    return FollowedRank(directory=directory, pid=meta["pid"], process=process, progress=progress, end=end)


def ends_seen(path: Path) -> dict[int, tuple[int, End]]:
    """Pid and end by rank, in a job's folder."""
    found = {}
    for number, row in read_own_json(path / ENDS).items():
        try:
            end = End(t_mono_ns=row["t_mono_ns"], exit_code=row["exit_code"], signal=row["signal"])
            found[int(number)] = (int(row["pid"]), end)
        except (KeyError, TypeError, ValueError):
            continue
    return found
