"""Python stacks by faulthandler, called from C: works while another thread holds the GIL."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.evidence.layout import RankDir, read_json, write_private

SIGNAL_S = 2.0
SETTLED_S = 0.1  # a dump is a handful of writes in a row


def traceback(target: Target) -> dict[str, Any]:
    """traceback.txt: the stacks of all threads, by torch's worker server, or by a signal where there is none."""
    try:
        text = target.server.ask("dump_traceback")
        by = "worker server"
    except CaptureError as error:
        text = _by_signal(target, str(error))
        by = "signal"
    write_private(target.directory.traceback, text)
    return {"by": by}


def _by_signal(target: Target, otherwise: str) -> bytes:
    """What faulthandler appended to the rank's file. Raises CaptureError, with `otherwise` if the rank has no handler."""
    rank = RankDir(path=target.directory.path.parents[1])
    meta = read_json(rank.meta, {})
    number = meta.get("traceback_signal")
    # Sent to a process that does not catch it, a real-time signal is the end of that process.
    if not number or meta.get("pid") != target.pid or not catches(target.pid, number):
        raise CaptureError(otherwise)
    try:
        before = rank.tracebacks.stat().st_size
        os.kill(target.pid, number)
    except OSError as error:
        raise CaptureError(f"{otherwise}; by signal: {error.strerror}") from None
    if not _wait_for_growth(rank.tracebacks, before):
        raise CaptureError(f"{otherwise}; nor did faulthandler answer signal {number} in {SIGNAL_S:g} s")
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
