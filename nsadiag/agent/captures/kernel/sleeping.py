"""Reads from the kernel until when a thread sleeps: a rank in `time.sleep(20)` is late, not stuck."""

from __future__ import annotations

import os
import platform
import struct
import time
from pathlib import Path

from nsadiag.evidence.blocking import mutex_address, syscall_name

# By which time.sleep waits from Python 3.11 on, with an absolute time to wake at.
SLEEP = "clock_nanosleep"
CLOCK_MONOTONIC = 1
TIMER_ABSTIME = 1
# By which locks wait: with a time limit, if somebody gave one, as in `event.wait(20)`.
FUTEX = "futex"
FUTEX_COMMAND, FUTEX_CLOCK_REALTIME = 0x7F, 0x100
FUTEX_WAIT = 0
FUTEX_WAIT_BITSET = 9  # the one whose time limit is a moment, not a length
FUTEX_PRIVATE = 128  # only threads of the same process can end the wait
# By which files, event loops and signals are waited for, and where the time limit, a length, stands among the arguments:
# in milliseconds (-1: none), or in a timespec that it points to.
MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
POINTERS = {"rt_sigtimedwait": 2, "pselect6": 4, "ppoll": 2}
TIMESPEC = struct.Struct("qq")
# The thread may have left its call since the kernel named it: then other data lies where its time limit was.
NANOSECONDS, MOST_SECONDS = 10**9, 2**33
MUTEX = struct.Struct("iIi")  # of glibc's pthread_mutex_t the beginning: lock, count, owner


def sleeps_until(pid: int, tid: int | None = None) -> int | None:
    """Monotonic nanoseconds at which a thread (the main one by default) wakes by itself; None if it is in no such sleep.

    None as well where the kernel may not be asked (no ptrace permission).
    """
    try:
        call, (clock, flags, address, *_) = _syscall(pid, tid)
        if call != SLEEP:
            return None
        if (clock, flags) == (CLOCK_MONOTONIC, TIMER_ABSTIME):
            wake_ns = _moment(pid, address)
        elif flags == 0 and tid in (None, pid):
            # As long from when it began: a program such as `sleep 20` does nothing else.
            wake_ns = _began_ns(pid) + _moment(pid, address)
        else:
            return None
    except (OSError, ValueError, struct.error):
        return None
    return wake_ns if wake_ns > time.monotonic_ns() else None


def waits_until(pid: int, tid: int | None = None) -> int | None:
    """The same for a thread that waits for a lock: when it stops waiting, got or not; None if it has no limit.

    Locks of threads wait by the monotonic clock (since Python 3.11), those between processes (`multiprocessing`) by the
    clock of the day, which may be set: then this is wrong by as much.
    """
    try:
        call, (_, operation, _, address, *_) = _syscall(pid, tid)
        waits = call == FUTEX and operation & FUTEX_COMMAND == FUTEX_WAIT_BITSET
        if not waits or not address:
            return None
        wake_ns = _moment(pid, address)
        if operation & FUTEX_CLOCK_REALTIME:
            wake_ns -= time.time_ns() - time.monotonic_ns()
    except (OSError, ValueError, struct.error):
        return None
    return wake_ns if wake_ns > time.monotonic_ns() else None


def locked_for_good(pid: int) -> bool:
    """Whether every thread waits, without a limit, for a lock that only another one of them could release.

    So stands a process that was forked while a thread of its parent, which it does not have, held the lock.
    """
    try:
        return all(_waits_for_own(pid, int(tid)) for tid in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - numbers, not paths
    except (OSError, ValueError):
        return False


def _waits_for_own(pid: int, tid: int) -> bool:
    call, (_, operation, _, limit, *_) = _syscall(pid, tid)
    waits = operation & FUTEX_COMMAND in (FUTEX_WAIT, FUTEX_WAIT_BITSET)
    return call == FUTEX and waits and bool(operation & FUTEX_PRIVATE) and not limit


def mutex_owner(pid: int, syscall: str | None) -> int | None:
    """The thread that owns the pthread mutex for which the main thread waits; None if it waits for none, or nobody may look.

    `syscall` is /proc/<pid>/syscall.
    """
    address = mutex_address(syscall, platform.machine())
    if address is None:
        return None
    try:
        owner = MUTEX.unpack(_memory(pid, address, MUTEX.size))[-1]
    except (OSError, struct.error):
        return None
    return owner if Path(f"/proc/{pid}/task/{owner}").exists() else None


def wait_limit_s(pid: int, tid: int | None = None) -> float | None:
    """The longest that a thread (the main one by default) may wait; None if without a limit, or it waits for no file or signal.

    The kernel does not say since when.
    """
    try:
        call, arguments = _syscall(pid, tid)
        if in_ms := MILLISECONDS.get(call or ""):
            # An int: what lies above its 32 bits is left over from something else.
            limit_ms = arguments[in_ms] & 0xFFFFFFFF
            return limit_ms / 1e3 if 0 < limit_ms < 2**31 else None
        at = POINTERS.get(call or "")
        if at is None or not arguments[at]:
            return None
        return _moment(pid, arguments[at]) / 1e9
    except (OSError, ValueError, IndexError, struct.error):
        return None


def _syscall(pid: int, tid: int | None) -> tuple[str | None, list[int]]:
    """The name of the call that a thread is in, if it may wait there, and the arguments. Raises ValueError if it is in none."""
    number, *arguments = Path(f"/proc/{pid}/task/{tid or pid}/syscall").read_text().split()
    return syscall_name(int(number), platform.machine()), [int(word, 0) for word in arguments]


def _began_ns(pid: int) -> int:
    """The start of the process, by the monotonic clock."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
    since_boot_ns = ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return since_boot_ns - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns())


def _moment(pid: int, address: int) -> int:
    """The timespec at that address, in nanoseconds. Raises ValueError where there is none."""
    seconds, nanoseconds = TIMESPEC.unpack(_memory(pid, address, TIMESPEC.size))
    if not (0 <= seconds < MOST_SECONDS and 0 <= nanoseconds < NANOSECONDS):
        raise ValueError(f"{seconds} s and {nanoseconds} ns are no time limit")
    return int(seconds) * NANOSECONDS + int(nanoseconds)


def _memory(pid: int, address: int, size: int) -> bytes:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)
