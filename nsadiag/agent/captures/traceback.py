"""Python stacks by faulthandler: asked of torch's worker server while the GIL is free, else by a signal.

The server's handler takes the GIL first (seen on torch 2.13): while it is held, the request is never answered and
costs the server one of its few threads. faulthandler's own signal handler needs no GIL, but a signal may cut a
system call of the job short, so it comes second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.answers import gil_owner
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.evidence.layout import RankDir, read_json, write_private

SIGNAL_S = 2.0
SETTLED_S = 0.1  # a dump is a handful of writes in a row


def traceback(target: Target) -> dict[str, Any]:
    """traceback.txt: the stacks of all threads as faulthandler writes them, while the GIL is held too."""
    why = "the GIL is held" if gil_owner(target.directory) else "py-spy did not say whether the GIL is free"
    if target.directory.py_spy.exists() and gil_owner(target.directory) is None:
        try:
            write_private(target.directory.traceback, target.server.ask("dump_traceback"))
            return {"by": "worker server"}
        except CaptureError as error:
            why = str(error)
    write_private(target.directory.traceback, _by_signal(target, why))
    return {"by": "signal"}


def _by_signal(target: Target, why: str) -> bytes:
    """What faulthandler appended to the rank's file. Raises CaptureError, with `why` it had to be a signal."""
    rank = RankDir(path=target.directory.path.parents[1])
    meta = read_json(rank.meta, {})
    number = meta.get("traceback_signal")
    # Sent to a process that does not catch it, a real-time signal is the end of that process.
    if not number or meta.get("pid") != target.pid or not catches(target.pid, number):
        raise CaptureError(f"{why}, and the process has no handler for a signal that would bring its stacks")
    try:
        before = rank.tracebacks.stat().st_size
        os.kill(target.pid, number)
    except OSError as error:
        raise CaptureError(f"{why}; by signal: {error.strerror}") from None
    if not _wait_for_growth(rank.tracebacks, before):
        raise CaptureError(f"{why}; nor did faulthandler answer signal {number} in {SIGNAL_S:g} s")
    return bytes(rank.tracebacks.read_bytes()[before:])


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
