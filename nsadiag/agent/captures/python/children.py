"""Python processes that a rank started, data-loader workers above all: what stops them stops the rank."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from nsadiag.agent.captures.kernel.proc import proc
from nsadiag.agent.captures.python.py_spy import nonblocking_stacks, python_stack
from nsadiag.agent.captures.target import CaptureError, NotApplicable, Target
from nsadiag.deadlines.calls import call
from nsadiag.evidence.blocking import is_loader
from nsadiag.evidence.documents.kernel import NO_PROCESS, KernelProcess
from nsadiag.evidence.documents.python_stacks import StackFrame, frames_of_main
from nsadiag.evidence.documents.types import read_value
from nsadiag.evidence.layout import make_private_dir
from nsadiag.evidence.stacks import stacks_in

MOST = 8  # a rank
PROC_S = 20.0  # files of /proc may wait for the lock on the process's memory
MOST_RUNNING = 4  # the same, at a look that a healthy job gets as well
LOOP = "torch/utils/data/_utils/worker.py"
# Values may be secret: whether they are the same as a look before is all that is told of them.
KEY = os.urandom(16)

Frames = tuple[StackFrame, ...]


def children(target: Target) -> dict[str, Any]:
    """children/<pid>/: stack and kernel state of the Python processes that the rank started, eight at most."""
    found = sorted(pid for pid in _descendants(target.pid) if _is_python(pid))
    if not found:
        raise NotApplicable("the rank has no Python process of its own")
    return _look_at(target, found, MOST)


def workers(target: Target) -> dict[str, Any]:
    """The same of those that run while the rank waits in its loader: a few snapshots tell whether they make progress."""
    if not any(is_loader(f.filename) for f in frames_of_main(stacks_in(target.directory))):
        raise NotApplicable("the rank does not wait for a batch of its loader")
    rows = (read_value(KernelProcess, target.directory.proc) or NO_PROCESS).children
    found = sorted(row.pid for row in rows if row.state == "R" and _is_python(row.pid))
    if not found:
        raise NotApplicable("no worker of its loader runs")
    called = {str(pid): frames for pid in found[:MOST_RUNNING] if (frames := _called(pid))}
    return {
        **_look_at(target, found, MOST_RUNNING),
        "values": {pid: _values(frames) for pid, frames in called.items()},
        "calls": {pid: _calls(frames) for pid, frames in called.items()},
    }


def _called(pid: int) -> Frames:
    """Functions that the loader's loop has called in that process, innermost first, with the variables."""
    try:
        frames = frames_of_main(nonblocking_stacks(pid, with_locals=True))
    except (CaptureError, ValueError):
        return ()
    depth = next((n for n, frame in enumerate(frames) if frame.filename.endswith(LOOP)), 0)
    return frames[:depth]


def _values(frames: Frames) -> str:
    """A digest of what the variables hold: a loop in one line changes them."""
    return _digest([[f.filename, f.line, [(v.name, v.repr) for v in f.locals or ()]] for f in frames])


def _calls(frames: Frames) -> list[list[str]]:
    """File, function and a digest of the arguments, outermost first: what is the same at two looks is one and the same call."""
    return [
        [f.filename, f.name, _digest([(v.name, v.repr) for v in f.locals or () if v.arg])]
        for f in reversed(frames)
    ]


def _digest(held: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(held).encode(), key=KEY, digest_size=8).hexdigest()


def _look_at(target: Target, found: list[int], most: int) -> dict[str, Any]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        failures = [failure for failure in pool.map(lambda pid: _look(target, pid), found[:most]) if failure]
    if len(failures) == min(len(found), most):
        raise CaptureError(f"none of {len(found)} child processes could be captured: {failures[0]}")
    return {"seen": len(found[:most]) - len(failures), "of": len(found), "failures": failures}


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def _look(rank: Target, pid: int) -> str | None:
    """Capture a child; the reason if it could not be read: it may well have ended meanwhile."""
    directory = rank.directory.child(pid)
    child = Target(pid=pid, directory=directory, socket=None, may_pause=False, with_locals=rank.with_locals)
    try:
        make_private_dir(directory.path)
        call(lambda: proc(child), PROC_S)
        python_stack(child)
    except (CaptureError, OSError, ValueError) as error:
        return f"process {pid}: {error}"
    return None
