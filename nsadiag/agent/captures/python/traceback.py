"""Python stacks by faulthandler, where py-spy may not look: from C, at a signal, or asked of torch's worker server.

The signal goes to one idle thread of torch's worker server and to no other: a thread of the job's own would find
its system call cut short (`signal.pause()` would return). Its handler reads the other threads' frames without the
GIL, and where one of them runs Python meanwhile, it ends the process by SIGSEGV (seen on 3.11 and 3.12). So it is
sent to a rank that rests, and to no other. torch's own handler takes the GIL: safe while the rank runs, and while
the GIL is held never answered, at the cost of one of the server's few threads (seen on torch 2.13 and 2.11).
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError, NotApplicable, Target
from nsadiag.agent.namespaces import pid_of
from nsadiag.evidence.documents.files import MOST_BYTES, open_evidence
from nsadiag.evidence.layout import RankDir, read_json, write_private

SERVER_THREAD = "pt_workerserver"[:15]  # as the kernel keeps names
SIGNAL_S = 2.0
REST_S = 0.1
REST_NS = 200_000  # a thread that wakes to look at a clock takes 30,000
# A thread that polls may wake in any one of these. To ask torch instead is final: where the GIL is held, the thread that
# was asked polls for it from then on, and the rank never rests again.
REST_LOOKS = 8
SETTLED_S = 0.1  # a dump is a handful of writes in a row


def traceback(target: Target) -> dict[str, Any]:
    """traceback.txt: the stacks of all threads as faulthandler writes them, if py-spy could not have them."""
    if target.directory.py_spy.exists():
        raise NotApplicable("py-spy has shown the stacks")
    return from_within(target)


def from_within(target: Target) -> dict[str, Any]:
    """Writes traceback.txt, whatever else is known; says who told."""
    if any(rests(target.pid) for _ in range(REST_LOOKS)):
        text, by = _by_signal(target), "signal"
    else:
        text, by = target.server.ask("dump_traceback"), "worker server"
    write_private(target.directory.traceback, text)
    return {"by": by}


def rests(pid: int) -> bool:
    """Whether no thread of the process wants the processor; False where the kernel does not say."""
    before = _threads(pid)
    time.sleep(REST_S)
    after = _threads(pid)
    if not before or before.keys() != after.keys():
        return False
    return all(
        "R" not in (before[tid][0], state) and used_ns - before[tid][1] < REST_NS
        for tid, (state, used_ns) in after.items()
    )


def _threads(pid: int) -> dict[str, tuple[str, int]]:
    """State of each thread, and nanoseconds that it ran; none where one of them cannot be read."""
    try:
        return {
            folder.name: (
                (folder / "stat").read_text().rpartition(") ")[2][0],
                int((folder / "schedstat").read_text().split()[0]),
            )
            for folder in Path(f"/proc/{pid}/task").iterdir()
        }
    except (OSError, ValueError, IndexError):
        return {}


def _by_signal(target: Target) -> bytes:
    """The text that faulthandler appended to the rank's file. Raises CaptureError if the rank is not prepared, or does not react."""
    rank = RankDir(path=target.directory.path.parents[1])
    meta = read_json(rank.meta, {})
    number, thread = meta.get("traceback_signal"), _idle_server_thread(target.pid)
    # Sent to a process that does not catch it, a real-time signal is the end of that process.
    if not number or not meta.get("pid") or pid_of(meta) != target.pid or not catches(target.pid, number):
        raise CaptureError("the process has no handler for a signal that would bring its stacks")
    if thread is None:
        raise CaptureError("no thread of the worker server could take a signal")
    try:
        with open_evidence(rank.tracebacks) as file:
            before = file.seek(0, 2)
    except OSError as error:
        raise CaptureError(f"{rank.tracebacks.name}: {error.strerror}") from None
    if _libc().tgkill(target.pid, thread, number):
        raise CaptureError(f"no signal could be sent: {os.strerror(ctypes.get_errno())}")
    if not _wait_for_growth(rank.tracebacks, before):
        raise CaptureError(f"faulthandler did not answer signal {number} in {SIGNAL_S:g} s")
    with open_evidence(rank.tracebacks) as file:
        file.seek(before)
        return file.read(MOST_BYTES) or b""


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
