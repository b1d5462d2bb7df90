"""The machine's resources that a silent rank uses, read from /proc twice a second: nearly free, and it needs no pause."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.agent.processes import TICKS_PER_S, cpu_s, queued_s, stat_fields
from nsadiag.agent.stillness.offspring import Offspring, Tally, tally
from nsadiag.evidence.blocking import Waker, by_wchan
from nsadiag.evidence.documents.kernel import KernelProcess

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
# Of one CPU. Ranks that only wait were seen at 0.003, pollers at up to 0.02; a rank that computes on a crowded
# machine may get little, and one that shows the same line for minutes may still be in a long loop.
BUSY_SHARE = 0.05
# Bytes a second. Loggers and metrics threads write and read a little all the time, the training thread does not.
IO_RATE = 21_000
MAIN_IO_RATE = 4_000
DISK_KIB_RATE = 64
INTERVAL_S = 0.5
STRAYS_AFTER_S = 2.0  # of a silence: to find them costs as much as to look at every process of the machine
MOST_STRAYS = 64
WINDOW_S = 10.0  # over which work must hold: a metrics thread's burst now and then does not
LEAST_OF_A_CPU = 0.125  # that a thread is reckoned with at least, however long it has queued for one
STARVED = 0.75  # of the time in a queue for a CPU
PAUSE_PER_COST = 50  # a sample that took t is followed by 50 t without one: at most 2 % of one CPU
IN_KERNEL = "D"  # waits for a disk, and cannot be interrupted
RUNNABLE = "R"
STOPPED = ("T", "t")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Counters of one rank at one moment."""

    t_s: float  # monotonic
    cpu_s: float  # of the process, its living descendants, and those that were waited for
    main_cpu_s: float
    io_bytes: int  # of the same processes
    main_io_bytes: int
    child_io_bytes: int  # of living descendants
    waits_for_child: bool  # what it has its children do is what it does
    state: str  # of the main thread
    in_kernel: bool  # the main thread, or a descendant, waits for a disk
    disk_kib: int  # that the whole machine has moved to and from its disks
    queued_s: float = 0.0  # that main threads, its own and its descendants', could have run and got no CPU
    below: Mapping[int, Tally] = field(default_factory=dict)  # its descendants, by pid


def _numbers(path: str) -> dict[str, int]:
    """Lines `key: value` or `key value`; none where the file may not be read."""
    try:
        rows = (line.replace(":", " ").split() for line in Path(path).read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return {}


def _waits_for_child(pid: int) -> bool:
    """Whether the kernel lets the main thread wait for a child: in wait4, or for the other end of a pipe."""
    try:
        row = by_wchan(Path(f"/proc/{pid}/wchan").read_text())
    except OSError:
        return False
    return row is not None and Waker.CHILD in row.waker


def _io(path: str) -> int:
    found = _numbers(path)
    return found.get("rchar", 0) + found.get("wchar", 0)


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, as far as the kernel lists them (each thread has its own list)."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - ten times as fast as Path, every second
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    found += [int(child), *descendants(int(child))]
    return found


def unqueued_s(before: Usage, after: Usage) -> float:
    """Seconds between two moments in which a CPU was to be had: a share of these is what the rank asked for.

    On a machine with ten times as many jobs as cores, whoever computes all the time gets a tenth of a CPU, and a poll
    that sleeps gets all that it wants.
    """
    seconds = max(after.t_s - before.t_s, 1e-3)
    return max(seconds - max(after.queued_s - before.queued_s, 0.0), seconds * LEAST_OF_A_CPU)


def _cpu_s(fields: list[str]) -> float:
    # With the time of children that have ended: a child that ends must not look like work undone.
    return sum(int(fields[n]) for n in (11, 12, 13, 14)) / TICKS_PER_S


def usage(pid: int) -> Usage | None:
    """Counters of the rank at this moment; None once it is gone."""
    own, main = stat_fields(pid), stat_fields(pid, pid)
    if own is None or main is None:
        return None
    below = [(child, fields) for child in descendants(pid) if (fields := stat_fields(child)) is not None]
    child_io = sum(_io(f"/proc/{child}/io") for child, _ in below)
    memory = _numbers("/proc/vmstat")
    return Usage(
        t_s=time.monotonic(),
        cpu_s=_cpu_s(own) + sum(_cpu_s(fields) for _, fields in below),
        main_cpu_s=cpu_s(main),
        io_bytes=_io(f"/proc/{pid}/io") + child_io,
        main_io_bytes=_io(f"/proc/{pid}/task/{pid}/io"),
        child_io_bytes=child_io,
        waits_for_child=_waits_for_child(pid),
        state=main[0],
        in_kernel=IN_KERNEL in (main[0], *(fields[0] for _, fields in below)),
        disk_kib=memory.get("pgpgin", 0) + memory.get("pgpgout", 0) + memory.get("nr_written", 0) * PAGE_KIB,
        queued_s=sum(queued_s(one) or 0.0 for one in (pid, *(child for child, _ in below))),
        below={child: tally(child, fields[0]) for child, fields in below},
    )


def recorded(proc: KernelProcess | None) -> Usage | None:
    """The same from a capture's proc.json, as far as that knows it."""
    if proc is None:
        return None
    main = proc.main
    return Usage(
        t_s=proc.seconds,
        cpu_s=proc.cpu_s + sum(child.cpu_s for child in proc.children),
        main_cpu_s=main.cpu_s if main else 0.0,
        io_bytes=sum((proc.io or {}).get(key, 0) for key in ("rchar", "wchar")),
        main_io_bytes=0,
        child_io_bytes=0,
        waits_for_child=False,
        state=main.state if main and main.state else proc.state,
        in_kernel=False,
        disk_kib=0,
        queued_s=sum(row.queued_s or 0.0 for row in (main, *proc.children) if row),
    )


def work(before: Usage, after: Usage) -> str | None:
    """The rank's work between two moments, in words; None if nothing to speak of.

    A rank that spins in a collective works by this measure: its caller has to know.
    """
    used = _used(before, after)
    if used:
        return used
    disk, seconds = after.disk_kib - before.disk_kib, after.t_s - before.t_s
    if _starved(before, after):
        return "wanted a CPU all the time"
    if before.in_kernel and after.in_kernel and disk > DISK_KIB_RATE * seconds:
        return f"waited for a disk that moved {disk:,} KiB"
    return None


def _starved(before: Usage, after: Usage) -> bool:
    """Whether it would have run all the time. A poll sleeps longer than it queues."""
    queued_s = after.queued_s - before.queued_s
    return before.state == after.state == RUNNABLE or queued_s > STARVED * (after.t_s - before.t_s)


def _used(before: Usage, after: Usage) -> str | None:
    """By what is counted, CPU time and bytes: the longer apart, the less a burst means."""
    seconds = unqueued_s(before, after)
    share = (after.cpu_s - before.cpu_s) / seconds
    if share > BUSY_SHARE:
        return f"used {share:.2f} CPUs"
    io, main_io = after.io_bytes - before.io_bytes, after.main_io_bytes - before.main_io_bytes
    if after.waits_for_child:
        main_io += after.child_io_bytes - before.child_io_bytes
    if io > IO_RATE * seconds or main_io > MAIN_IO_RATE * seconds:
        return f"read or wrote {max(io, main_io):,} bytes"
    return None


def _lasts(seen: Sequence[Usage]) -> bool:
    """Whether what was done between the last two samples is more than a burst in a silence."""
    first, before, now = seen[0], seen[-2], seen[-1]
    if (before.in_kernel and now.in_kernel) or _starved(before, now):
        return True
    return _used(first, now) is not None


class Activity:
    """Follows silent ranks: when did each of them last work?"""

    def __init__(self, strays: Callable[[], Iterable[int]] = tuple) -> None:
        """`strays` says which processes of the job, by pid, descend from none of its ranks and launchers any more."""
        self._find_strays = strays
        self._strays: list[int] | None = None
        self._silent_since = 0.0
        self.worked: dict[int, float] = {}  # rank to monotonic seconds
        self.did: dict[int, str] = {}
        self.sampled = 0.0  # when; before the first sample of a silence, 0
        self._next = 0.0
        self._seen: dict[int, deque[Usage]] = {}
        self._offspring: dict[int, Offspring] = {}  # of the processes below each rank

    def sample(self, pids: dict[int, int]) -> set[int]:
        """Ranks (of rank to pid) that worked since the sample before; empty as long as none is due."""
        started = time.monotonic()
        if started < self._next:
            return set()
        self._silent_since = self._silent_since or started
        if self._strays is None and started - self._silent_since > STRAYS_AFTER_S:
            self._strays = sorted(self._find_strays())[:MOST_STRAYS]
        found = self.note({rank: usage(pid) for rank, pid in pids.items()})
        self.sampled = started
        self._next = started + max(INTERVAL_S, PAUSE_PER_COST * (time.monotonic() - started))
        return found

    def note(self, usages: dict[int, Usage | None]) -> set[int]:
        """The same of counters that were read for another end, whether a sample is due or not.

        On a crowded machine samples are seconds apart, and a look must not miss what was done since the last one.
        """
        beside = {
            pid: tally(pid, fields[0])
            for pid in self._strays or ()
            if (fields := stat_fields(pid)) is not None
        }
        for rank, now in usages.items():
            if now is not None:
                self.offspring(rank).note(now.t_s, now.below, beside)
        return {rank for rank, now in usages.items() if now is not None and self._worked(rank, now)}

    def offspring(self, rank: int) -> Offspring:
        """The processes below that rank, as they were in this silence."""
        return self._offspring.setdefault(rank, Offspring())

    def slowed(self) -> float | None:
        """Times as long as usual that things take the ranks in this silence, by how long they queued for a CPU.

        None before there are two samples of it. A rank that only waits queues for none, however crowded the machine is.
        """
        ends = [(seen[0], seen[-1]) for seen in self._seen.values() if len(seen) > 1]
        if not ends:
            return None
        return max((b.t_s - a.t_s) / unqueued_s(a, b) for a, b in ends)

    def _worked(self, rank: int, now: Usage) -> bool:
        seen = self._seen.setdefault(rank, deque())
        did = work(seen[-1], now) if seen else None
        seen.append(now)
        while len(seen) > 2 and now.t_s - seen[0].t_s > WINDOW_S:
            seen.popleft()
        if did is None or not _lasts(seen):
            return False
        self.worked[rank], self.did[rank] = now.t_s, did
        return True

    def forget(self) -> None:
        """The silence is over; the next sample starts anew."""
        self._seen.clear()
        self._offspring.clear()
        self._strays, self._silent_since = None, 0.0
        self.worked.clear()
        self.sampled = self._next = 0.0
