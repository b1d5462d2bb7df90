"""Python processes that a rank started, data-loader workers above all: what stops them stops the rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from nsadiag.agent.captures.proc import proc
from nsadiag.agent.captures.py_spy import python_stack
from nsadiag.agent.captures.target import CaptureError, NotApplicable, Target
from nsadiag.evidence.layout import make_private_dir

MOST = 8  # a rank


def children(target: Target) -> dict[str, Any]:
    """children/<pid>/: stack and kernel state of the Python processes that the rank started, eight at most."""
    found = sorted(pid for pid in _descendants(target.pid) if _is_python(pid))
    if not found:
        raise NotApplicable("the rank has no Python process of its own")
    with ThreadPoolExecutor(max_workers=2) as pool:
        failures = [failure for failure in pool.map(lambda pid: _look(target, pid), found[:MOST]) if failure]
    if len(failures) == min(len(found), MOST):
        raise CaptureError(f"none of {len(found)} child processes could be looked at: {failures[0]}")
    return {"seen": len(found[:MOST]) - len(failures), "of": len(found), "failures": failures}


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
    """Why it could not be looked at, if so: it may well have ended meanwhile."""
    directory = rank.directory.child(pid)
    child = Target(pid=pid, directory=directory, socket=None, may_pause=False, with_locals=rank.with_locals)
    try:
        make_private_dir(directory.path)
        proc(child)
        python_stack(child)
    except (CaptureError, OSError, ValueError) as error:
        return f"process {pid}: {error}"
    return None
