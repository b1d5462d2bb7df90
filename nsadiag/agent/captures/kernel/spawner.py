"""The process that started a rank by multiprocessing: a worker of a pool waits for what that one brings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from nsadiag.agent.captures.kernel.sleeping import sleeps_until
from nsadiag.agent.processes import cpu_s, parent, stat_fields

OF_THE_SERVER = b"multiprocessing.forkserver"  # which forks for the process that asked it to
# Both are on the command line of what multiprocessing starts anew; what it forks has that of its parent.
STARTED_ANEW = (b"--multiprocessing-fork", OF_THE_SERVER)


def spawner(pid: int) -> dict[str, Any] | None:
    """Its work, its context switches, and the ends of its threads' sleeps; None where the rank was started in another way.

    Its `family` is what else descends from it: brothers of the rank may be the ones that bring something.
    """
    above = _above(pid)
    fields = stat_fields(above) if above else None
    if above is None or fields is None:
        return None
    family = _family(above, pid)
    return {
        "pid": above,
        "cpu_s": cpu_s(fields),
        "turns": sum(_turns(above, tid) for tid in _threads(above)),
        "sleeps_until_mono_ns": [until for tid in _threads(above) if (until := sleeps_until(above, tid))],
        "family_cpu_s": sum(cpu_s(found) for one in family if (found := stat_fields(one))),
    }


def _above(pid: int) -> int | None:
    own, above = _command(pid), parent(pid)
    if not own or above in (0, 1, os.getpid()):
        return None
    if not any(word in own for word in STARTED_ANEW) and own != _command(above):
        return None
    if OF_THE_SERVER in _command(above):
        above = parent(above)
    return above if above not in (0, 1, os.getpid()) else None


def _family(above: int, but: int) -> list[int]:
    try:
        found = [child.pid for child in psutil.Process(above).children(recursive=True)]
        own = {but, *(child.pid for child in psutil.Process(but).children(recursive=True))}
    except psutil.Error:
        return []
    return [pid for pid in found if pid not in own]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - numbers, not paths
    except OSError:
        return []


def _turns(pid: int, tid: int) -> int:
    """Number of times that a thread has gone to sleep, which is as often as it woke."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/status").read_text()
    except OSError:
        return 0
    row = next((row for row in text.splitlines() if row.startswith("voluntary_ctxt_switches")), "")
    return int(row.split()[-1]) if row else 0
