"""The holder of the lock on a file that a thread waits for, by the kernel's list of locks."""

from __future__ import annotations

import platform
from pathlib import Path

from nsadiag.evidence.blocking import syscall_name

CALLS = ("flock", "fcntl")  # lockf works by fcntl


def holder(pid: int, syscall: str | None, *, listed: str | None = None) -> int | None:
    """The process that holds what `pid` waits for; None if it waits for no such lock, or the kernel does not say.

    `syscall` is /proc/<pid>/syscall; `listed` stands for /proc/locks.
    """
    number = (syscall or "").partition(" ")[0]
    if not number.isdigit() or syscall_name(int(number), platform.machine()) not in CALLS:
        return None
    try:
        text = Path("/proc/locks").read_text() if listed is None else listed
    except OSError:
        return None
    holders: dict[str, int] = {}
    for line in text.splitlines():
        # `1: FLOCK ADVISORY WRITE 708 08:01:39 0 EOF`, and below it `1: -> FLOCK ...` for each that waits.
        number, *words = line.replace("->", "-> ").split()
        waits = words[:1] == ["->"]
        words = words[waits:]
        if len(words) < 4 or not words[3].lstrip("-").isdigit():
            continue
        if not waits:
            holders[number] = int(words[3])
        elif int(words[3]) == pid:
            found = holders.get(number, 0)
            # 0 or less: a process of another namespace, or nobody in particular.
            return found if found > 0 else None
    return None
