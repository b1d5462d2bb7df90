"""The clock offset between two nodes, from the exchanges with the shortest round trip."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

LARGEST = 2**63  # as the kernel counts
KEPT = 120  # questions, one a second: clocks drift by some ten microseconds a second, so old answers go


@dataclass(frozen=True, kw_only=True)
class Offset:
    """The offsets from a node's clocks to those of node 0; each is accurate to half of `rtt_ns`."""

    mono_offset_ns: int
    wall_offset_ns: int
    rtt_ns: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Both clocks of a machine at one moment."""

    mono_ns: int
    wall_ns: int


def read() -> Reading:
    return Reading(mono_ns=time.monotonic_ns(), wall_ns=time.time_ns())


def document(reading: Reading) -> dict[str, int]:
    return asdict(reading)


def reading_of(note: dict[str, Any]) -> Reading:
    """Raises KeyError, TypeError or ValueError where the note is none."""
    mono_ns, wall_ns = int(note["mono_ns"]), int(note["wall_ns"])
    if max(abs(mono_ns), abs(wall_ns)) >= LARGEST:
        raise ValueError("no time of a clock")
    return Reading(mono_ns=mono_ns, wall_ns=wall_ns)


class Clock:
    """Collects answers of one node. The one that took least has the least room for error."""

    def __init__(self) -> None:
        self._found: deque[Offset] = deque(maxlen=KEPT)

    def learn(self, asked: Reading, theirs: Reading, now: Reading) -> None:
        """`theirs` was read between `asked` and `now`, half-way as far as anyone can tell."""
        rtt_ns = now.mono_ns - asked.mono_ns
        half = rtt_ns // 2
        self._found.append(
            Offset(
                mono_offset_ns=asked.mono_ns + half - theirs.mono_ns,
                # From one reading of our wall clock: it may have been set meanwhile.
                wall_offset_ns=now.wall_ns - half - theirs.wall_ns,
                rtt_ns=rtt_ns,
            )
        )

    def offset(self) -> Offset | None:
        """The best estimate; None before the first answer."""
        return min(self._found, key=lambda o: o.rtt_ns, default=None)
