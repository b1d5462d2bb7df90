"""Reads from the kernel until when a thread sleeps: a rank in `time.sleep(20)` is late, not stuck."""

from __future__ import annotations

import platform
import struct
import time
from pathlib import Path

# Number of clock_nanosleep, which time.sleep uses from Python 3.11 on, with an absolute time to wake at.
CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}
CLOCK_MONOTONIC = 1
TIMER_ABSTIME = 1
TIMESPEC = struct.Struct("qq")


def sleeps_until(pid: int) -> int | None:
    """Monotonic nanoseconds at which the main thread wakes by itself; None if it is in no such sleep.

    None as well where the kernel may not be asked (no ptrace permission).
    """
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        number, clock, flags, address = (int(word, 0) for word in words[:4])
        if (number, clock, flags) != (
            CLOCK_NANOSLEEP.get(platform.machine()),
            CLOCK_MONOTONIC,
            TIMER_ABSTIME,
        ):
            return None
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            seconds, nanoseconds = TIMESPEC.unpack(memory.read(TIMESPEC.size))
    except (OSError, ValueError, struct.error):
        return None
    wake_ns = int(seconds) * 10**9 + int(nanoseconds)
    return wake_ns if wake_ns > time.monotonic_ns() else None
