"""Numbers of processes, where a job has others than we see: in a container or pid namespace below ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMESPACE = "pid_namespace"  # of meta.json
OWN = Path("/proc/self/ns/pid")


def pid_of(meta: dict[str, Any]) -> int:
    """The number that the process of a meta.json has here; 0 where it cannot be seen from here."""
    pid, theirs = int(meta["pid"]), meta.get(NAMESPACE)
    if theirs is None or theirs == namespace_of(OWN):
        return pid
    seen = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return next(
        (int(p.name) for p in seen if namespace_of(p / "ns" / "pid") == theirs and _inner(p) == pid), 0
    )


def namespace_of(link: Path) -> int | None:
    try:
        return link.stat().st_ino
    except OSError:
        return None


def _inner(process: Path) -> int | None:
    """Its number in its own namespace: the kernel lists those of all, the innermost last."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return int(numbers[-1]) if numbers else None
