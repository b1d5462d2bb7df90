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
# And of futex, by which locks wait: with a time limit, if somebody gave one, as in `event.wait(20)`.
FUTEX = {"x86_64": 202, "aarch64": 98}
FUTEX_COMMAND, FUTEX_CLOCK_REALTIME = 0x7F, 0x100
FUTEX_WAIT_BITSET = 9  # the one whose time limit is a moment, not a length
TIMESPEC = struct.Struct("qq")


def sleeps_until(pid: int, tid: int | None = None) -> int | None:
    """Monotonic nanoseconds at which a thread (the main one by default) wakes by itself; None if it is in no such sleep.

    None as well where the kernel may not be asked (no ptrace permission).
    """
    try:
        number, clock, flags, address = _syscall(pid, tid)[:4]
        if (number, clock, flags) != (
            CLOCK_NANOSLEEP.get(platform.machine()),
            CLOCK_MONOTONIC,
            TIMER_ABSTIME,
        ):
            return None
        wake_ns = _moment(pid, address)
    except (OSError, ValueError, struct.error):
        return None
    return wake_ns if wake_ns > time.monotonic_ns() else None


def waits_until(pid: int) -> int | None:
    """The same for a main thread that waits for a lock: when it stops waiting, got or not; None if it has no limit.

    By the monotonic clock alone, which is Python's since 3.11: the other one may be set.
    """
    try:
        number, _, operation, _, address = _syscall(pid, None)[:5]
        waits = number == FUTEX.get(platform.machine()) and operation & FUTEX_COMMAND == FUTEX_WAIT_BITSET
        if not waits or operation & FUTEX_CLOCK_REALTIME or not address:
            return None
        wake_ns = _moment(pid, address)
    except (OSError, ValueError, struct.error):
        return None
    return wake_ns if wake_ns > time.monotonic_ns() else None


def _syscall(pid: int, tid: int | None) -> list[int]:
    """Its number and arguments. Raises ValueError if the thread is not in one."""
    return [int(word, 0) for word in Path(f"/proc/{pid}/task/{tid or pid}/syscall").read_text().split()]


def _moment(pid: int, address: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        seconds, nanoseconds = TIMESPEC.unpack(memory.read(TIMESPEC.size))
    return int(seconds) * 10**9 + int(nanoseconds)
