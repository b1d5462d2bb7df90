"""Processes that the kernel ended for want of memory while the job ran: by its counters, and by its own log."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.kernel import cgroups
from nsadiag.evidence.layout import OOM, RunDir, make_private_dir, this_node, write_json

KMSG = Path("/dev/kmsg")
MOST_LINES = 20_000
# "Out of memory: Killed process 4711 (python) total-vm:...", "Memory cgroup out of memory: Killed process 4711 ..."
KILLED = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)(?P<rest>[^\n]*)")

Folders = tuple[Path | None, Path | None]


class OomWatch:
    """Notes each rank's counters when it appears; what has grown by the end was counted meanwhile."""

    def __init__(self) -> None:
        self._before: dict[Folders, int | None] = {}
        self._of: dict[int, Folders] = {}

    def note(self, pid: int) -> None:
        """To be called while the process lives."""
        folders = cgroups.folders(pid)
        self._of[pid] = folders
        if folders not in self._before:
            self._before[folders] = cgroups.read_folders(*folders)["oom_kills"]

    def write(self, run: RunDir, ends: dict[str, dict[str, Any]]) -> None:
        """nodes/<host>/oom.json, if any of the ranks was ended by SIGKILL, and not by us."""
        killed = [int(e["pid"]) for e in ends.values() if e["signal"] == signal.SIGKILL and not e["by_us"]]
        if killed:
            node = make_private_dir(run.node(this_node()))
            write_json(node / OOM, self.report(killed))

    def report(self, pids: list[int]) -> dict[str, Any]:
        """Counters before and after, for the groups of these processes, and the kernel's own words on them."""
        grown = []
        for folders in dict.fromkeys(self._of[pid] for pid in pids if pid in self._of):
            now, before = cgroups.read_folders(*folders), self._before[folders]
            if before is not None and (now["oom_kills"] or 0) > before:
                grown.append(
                    {"oom_kills_before": before, **{k: v for k, v in now.items() if k != "pressure"}}
                )
        return {"grown": grown, "kernel": kernel_says(set(pids))}


def kernel_says(pids: set[int], log: Path = KMSG) -> list[dict[str, Any]]:
    """Lines of the kernel's log that say it ended one of these; none where it may not be read."""
    found = []
    for line in _lines(log):
        match = KILLED.search(line)
        # In a container the kernel's pids are not ours: then no line is about one of these.
        if match and int(match["pid"]) in pids:
            found.append({"pid": int(match["pid"]), "line": match[0][:300]})
    return found


def _lines(log: Path) -> list[str]:
    """A record a read, until there is none left."""
    lines: list[str] = []
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return lines
    try:
        while len(lines) < MOST_LINES:
            try:
                chunk = os.read(descriptor, 8192)
            except BrokenPipeError:
                continue  # records were overwritten while we read
            if not chunk:
                break
            lines.extend(chunk.decode(errors="replace").splitlines())
    except OSError:
        return lines
    finally:
        os.close(descriptor)
    return lines
