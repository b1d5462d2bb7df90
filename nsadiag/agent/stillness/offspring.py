"""The processes below a rank: what each of them did in a silence, and after which pauses.

A tool that gets rid of a piece every few seconds stands, like a stuck one, in two looks that fall between two pieces: the rank
that waits for it is as quiet as the whole tree of its processes. So each of these is followed as long as the silence lasts, and is
taken to go on until it has paused for far longer than it ever did.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent.processes import ZOMBIE

MOST_THREADS = 32  # that are asked, of one process
RHYTHM = 3.0  # a pause this many times the longest one so far is its end
SINCE_S = 5.0  # for which one beat counts at least


class Beat(enum.Enum):
    """The kinds of motion, the most telling first."""

    WROTE = "wrote something"  # to a file, a pipe or a socket
    READ = "read something"
    RAN = "woke"  # its main thread; or it began or ended
    RAN_BESIDE = "has another thread that woke"  # which many a process has for nothing


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counters of one process at one moment."""

    state: str
    wrote: int = 0
    read: int = 0
    ran: str = ""  # what its main thread got of CPUs, and how often; and its others
    ran_beside: tuple[str, ...] = ()


def tally(pid: int, state: str) -> Tally:
    """Counts of a process that the rank has started; those that may not be read do not move."""
    moved = {"rchar": 0, "wchar": 0}
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines()[:2]:
            key, _, value = line.partition(": ")
            moved[key] = int(value)
    tids: list[str] = []
    with contextlib.suppress(OSError):
        tids = os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]  # noqa: PTH208 - numbers, not paths
    ran = {tid: _ran(pid, tid) for tid in tids}
    main = ran.pop(str(pid), "")
    return Tally(
        state=state, wrote=moved["wchar"], read=moved["rchar"], ran=main, ran_beside=tuple(ran.values())
    )


def _ran(pid: int, tid: str) -> str:
    """Seconds on a CPU, and how often it got one; waiting for one counts only once it was got."""
    with contextlib.suppress(OSError):
        on_cpu, _, times = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()
        return f"{on_cpu} {times}"
    return ""


@dataclass(kw_only=True)
class _Rhythm:
    last: float
    longest_s: float = 0.0
    has_beaten: bool = False


class Offspring:
    """The doings of the processes below one rank in the present silence. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self._known: dict[int, Tally] | None = None
        self._rhythms: dict[tuple[int, Beat], _Rhythm] = {}
        self.strays: set[int] = set()  # processes of the job that descend from none of its ranks any more

    def note(self, now: float, below: Mapping[int, Tally], strays: Mapping[int, Tally] | None = None) -> None:
        """Their counters at that moment, and those of the job's strays; the first time says nothing."""
        new = (strays or {}).keys() - self.strays
        self.strays |= new
        below = {**below, **(strays or {})}
        known = below if self._known is None else {**self._known, **{pid: below[pid] for pid in new}}
        for pid in known.keys() | below.keys():
            for beat in Beat:
                rhythm = self._rhythms.setdefault((pid, beat), _Rhythm(last=now))
                if _beats(beat, known.get(pid), below.get(pid)):
                    rhythm.longest_s = max(rhythm.longest_s, now - rhythm.last)
                    rhythm.last, rhythm.has_beaten = now, True
        self._known = dict(below)

    def left_s(self, beat: Beat, pids: Collection[int], now: float, *, times: float = 1.0) -> float:
        """Seconds for which one of them may still pause; 0 where none has beaten so.

        `times` as long as usual things take on this machine at the moment.
        """
        left = 0.0
        for (pid, kind), rhythm in self._rhythms.items():
            if kind is beat and rhythm.has_beaten and pid in pids:
                may_s = max(SINCE_S * times, RHYTHM * rhythm.longest_s)
                left = max(left, rhythm.last + may_s - now)
        return left


def _beats(beat: Beat, before: Tally | None, after: Tally | None) -> bool:
    """Whether a process did that between two moments; one that is not there at one of them began or ended."""
    if before is None or after is None or before.state != after.state == ZOMBIE:
        return beat is Beat.RAN
    if beat is Beat.WROTE:
        return after.wrote > before.wrote
    if beat is Beat.READ:
        return after.read > before.read
    if beat is Beat.RAN:
        return after.ran != before.ran or after.state in "RD"
    return after.ran_beside != before.ran_beside
