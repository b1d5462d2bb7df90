"""The kernel's view of a rank: state, CPU time per thread, what it sleeps in, descriptors, I/O, memory, children."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from nsadiag.agent.captures.kernel.awaited import awaited
from nsadiag.agent.captures.kernel.cgroups import cgroup
from nsadiag.agent.captures.kernel.descriptors import descriptors
from nsadiag.agent.captures.kernel.file_locks import holder
from nsadiag.agent.captures.kernel.pipes import far_end
from nsadiag.agent.captures.kernel.sleeping import (
    locked_for_good,
    mutex_owner,
    sleeps_until,
    wait_limit_s,
    waits_until,
)
from nsadiag.agent.captures.kernel.spawner import spawner
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.agent.processes import ZOMBIE, cpu_s, queued_s, stat_fields
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.secrets.masking import mask_command

STATUS = frozenset(
    {
        "Threads", "VmSwap", "VmHWM", "SigQ", "SigPnd", "ShdPnd", "SigBlk", "SigCgt", "TracerPid", "Seccomp",
        "Cpus_allowed_list", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches",
    }
)  # fmt: skip

MOST_THREADS = 32  # of a child


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _thread(pid: int, folder: Path, below: dict[int, int]) -> dict[str, Any] | None:
    text = _text(folder / "stat")
    if text is None:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    name = text[text.index("(") + 1 : text.rindex(")")]
    return {
        "tid": int(folder.name),
        "name": name,
        "state": fields[0],
        "cpu_s": cpu_s(fields),
        "queued_s": queued_s(pid, int(folder.name)),
        "wchan": _text(folder / "wchan"),
        "sleeps_until_mono_ns": sleeps_until(pid, int(folder.name)),
        "waits_until_mono_ns": waits_until(pid, int(folder.name)),
        "wait_limit_s": wait_limit_s(pid, int(folder.name)),
        "awaits": awaited(pid, _text(folder / "syscall"), below) if below else [],
    }


def _io(pid: int) -> dict[str, int]:
    lines = (_text(Path(f"/proc/{pid}/io")) or "").splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines)}


def _children(pid: int) -> list[dict[str, Any]]:
    rows = []
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    for child in children:
        fields = stat_fields(child.pid)
        if fields:
            rows.append(
                {
                    "pid": child.pid,
                    "parent": int(fields[1]),
                    "state": fields[0],
                    "cpu_s": cpu_s(fields),
                    "queued_s": queued_s(child.pid),
                    "command": _command(child.pid),
                    "sleeps_until_mono_ns": sleeps_until(child.pid),
                    "threads_sleep_until_mono_ns": _threads_sleep_until(child.pid),
                    "wait_limit_s": wait_limit_s(child.pid),
                    "wchan": _text(Path(f"/proc/{child.pid}/wchan")),
                    "locked_for_good": locked_for_good(child.pid),
                    "turns": _whole(_status(child.pid).get("voluntary_ctxt_switches")),
                }
            )
    return rows


def _threads_sleep_until(pid: int) -> list[int]:
    """The times at which threads of it other than the main one wake by themselves."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]  # noqa: PTH208 - numbers, not paths
    except OSError:
        return []
    ends = [sleeps_until(pid, int(tid)) for tid in tids if int(tid) != pid]
    return [end for end in ends if end]


def _parents(children: list[dict[str, Any]]) -> dict[int, int]:
    return {child["pid"]: child["parent"] for child in children if child["state"] != ZOMBIE}


def _command(pid: int) -> str:
    return " ".join(mask_command((_text(Path(f"/proc/{pid}/cmdline")) or "").split("\0")))[:200]


def _holder(pid: int, syscall: str | None) -> dict[str, Any] | None:
    """The holder of the lock on a file that the main thread waits for, and how much it has worked."""
    found = holder(pid, syscall)
    fields = stat_fields(found) if found else None
    if found is None or fields is None:
        return None
    return {"pid": found, "cpu_s": cpu_s(fields), "command": _command(found)}


def _status(pid: int) -> dict[str, str]:
    """Limits, signals and context switches, by /proc/<pid>/status."""
    lines = (_text(Path(f"/proc/{pid}/status")) or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key: " ".join(value.split()) for key, _, value in pairs if key in STATUS}


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def proc(target: Target) -> None:
    """proc.json: what the kernel knows: state, where it sleeps, descriptors, I/O, memory and its limits.

    Raises CaptureError once the process is gone.
    """
    fields = stat_fields(target.pid)
    if fields is None:
        raise CaptureError("the process is gone")
    folder = Path(f"/proc/{target.pid}")
    syscall = _text(folder / "syscall")
    children = _children(target.pid)
    below = _parents(children)
    threads = [_thread(target.pid, path, below) for path in sorted((folder / "task").iterdir())]
    snapshot = {
        "t_mono_ns": time.monotonic_ns(),
        "pid": target.pid,
        "state": fields[0],
        "cpu_s": cpu_s(fields),
        "rss_mib": int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "wchan": _text(folder / "wchan"),
        "machine": platform.machine(),
        "syscall": syscall,
        "lock_held_by": _holder(target.pid, syscall),
        "mutex_held_by": mutex_owner(target.pid, syscall),
        # Of its children, those without which the pipe at which the main thread stands stays as it is.
        "pipe_held_by": far_end(target.pid, syscall, below),
        "kernel_stack": _text(folder / "stack"),
        "sleeps_until_mono_ns": sleeps_until(target.pid),
        "waits_until_mono_ns": waits_until(target.pid),
        "wait_limit_s": wait_limit_s(target.pid),
        "oom_score": _whole(_text(folder / "oom_score")),
        "status": _status(target.pid),
        "io": _io(target.pid),
        "threads": [thread for thread in threads if thread],
        "children": children,
        "spawner": spawner(target.pid),
        "fds": descriptors(target.pid),
        "cgroup": cgroup(target.pid),
    }
    write_json(target.directory.proc, snapshot)
