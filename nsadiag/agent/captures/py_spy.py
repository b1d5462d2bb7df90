"""Python and native stacks by py-spy, which reads the process's memory and needs no help from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError, Target

TIMEOUT_S = 5.0
NATIVE_TIMEOUT_S = 15.0


def find_py_spy() -> str:
    """The py-spy beside this Python, else the one on PATH. Raises CaptureError if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if not found:
        raise CaptureError("py-spy is not installed")
    return found


def _dump(arguments: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            [find_py_spy(), "dump", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(f"py-spy gave no answer in {timeout_s:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CaptureError(f"py-spy: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def python_stack(target: Target) -> None:
    """py_spy.json: all threads, innermost frame first."""
    pid = ["--json", "--pid", str(target.pid)]
    try:
        text = _dump(pid, TIMEOUT_S)
    except CaptureError:
        # A process that is stopped or in state D cannot be paused; it does not move either, so this is exact.
        text = _dump([*pid, "--nonblocking"], TIMEOUT_S)
    json.loads(text)
    target.directory.py_spy.write_text(text)


def glance(pid: int) -> list[dict[str, Any]]:
    """The threads' stacks without pausing the process: may fail or be slightly torn, and costs the job nothing."""
    threads = json.loads(_dump(["--json", "--nonblocking", "--pid", str(pid)], TIMEOUT_S))
    return list(threads)


def native_stack(target: Target) -> None:
    """native.txt: Python and C frames mixed."""
    target.directory.native.write_text(_dump(["--native", "--pid", str(target.pid)], NATIVE_TIMEOUT_S))
