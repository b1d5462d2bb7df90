"""Python stacks by faulthandler, from C: at a signal, which needs no GIL, else asked of torch's worker server.

The signal goes to one idle thread of torch's worker server and to no other: a thread of the job's own would find
its system call cut short (`signal.pause()` would return). The server's own handler comes second: it takes the GIL
(seen on torch 2.13), and while that is held never answers and costs the server one of its few threads.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.answers import gil_owner
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.evidence.layout import RankDir, read_json, write_private

SERVER_THREAD = "pt_workerserver"[:15]  # as the kernel keeps names
SIGNAL_S = 2.0
SETTLED_S = 0.1  # a dump is a handful of writes in a row


def traceback(target: Target) -> dict[str, Any]:
    """traceback.txt: the stacks of all threads as faulthandler writes them, while the GIL is held too."""
    try:
        text, by = _by_signal(target), "signal"
    except CaptureError as error:
        text, by = _by_server(target, str(error)), "worker server"
    write_private(target.directory.traceback, text)
    return {"by": by}


def _by_server(target: Target, otherwise: str) -> bytes:
    target.server.handlers()
    if not target.directory.py_spy.exists() or gil_owner(target.directory):
        raise CaptureError(
            f"{otherwise}, and the worker server is not asked unless the GIL is known to be free"
        )
    return target.server.ask("dump_traceback")


def _by_signal(target: Target) -> bytes:
    """What faulthandler appended to the rank's file. Raises CaptureError if the rank is not prepared, or does not react."""
    rank = RankDir(path=target.directory.path.parents[1])
    meta = read_json(rank.meta, {})
    number, thread = meta.get("traceback_signal"), _idle_server_thread(target.pid)
    # Sent to a process that does not catch it, a real-time signal is the end of that process.
    if not number or meta.get("pid") != target.pid or not catches(target.pid, number):
        raise CaptureError("the process has no handler for a signal that would bring its stacks")
    if thread is None:
        raise CaptureError("no thread of the worker server could take a signal")
    try:
        before = rank.tracebacks.stat().st_size
    except OSError as error:
        raise CaptureError(f"{rank.tracebacks.name}: {error.strerror}") from None
    if _libc().tgkill(target.pid, thread, number):
        raise CaptureError(f"no signal could be sent: {os.strerror(ctypes.get_errno())}")
    if not _wait_for_growth(rank.tracebacks, before):
        raise CaptureError(f"faulthandler did not answer signal {number} in {SIGNAL_S:g} s")
    return bytes(rank.tracebacks.read_bytes()[before:])


def _libc() -> ctypes.CDLL:
    """Raises CaptureError where the C library has no tgkill (glibc before 2.30)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "tgkill"):
        raise CaptureError("this C library cannot signal one thread of another process")
    return libc


def _idle_server_thread(pid: int) -> int | None:
    """One that waits for work: all of the pool do, but those that a request for the GIL has caught."""
    try:
        for folder in sorted(Path(f"/proc/{pid}/task").iterdir(), reverse=True):
            if (folder / "comm").read_text().strip() == SERVER_THREAD:
                return int(folder.name)
    except OSError:
        return None
    return None


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal: SigCgt in /proc/<pid>/status is a mask in hexadecimal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def _wait_for_growth(path: Path, before: int) -> bool:
    deadline = time.monotonic() + SIGNAL_S
    size, since = before, time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.01)
        now = path.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif size > before and time.monotonic() - since > SETTLED_S:
            return True
    return size > before
