"""Python and native stacks by py-spy, which reads the process's memory and needs no help from it."""

from __future__ import annotations

import json
import re
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


def _dump(pid: int, arguments: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            [find_py_spy(), "dump", *arguments, "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(f"py-spy gave no answer in {timeout_s:g} s") from None
    if done.returncode:
        _check_permission(pid)
        lines = done.stderr.strip().splitlines()
        raise CaptureError(f"py-spy: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _check_permission(pid: int) -> None:
    """py-spy takes a process that it may not read for one that is not there. Raises CaptureError."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except PermissionError:
        raise CaptureError(
            f"py-spy may not read process {pid}: permission denied (it needs the same user, or CAP_SYS_PTRACE)"
        ) from None
    except OSError:
        return


def python_stack(target: Target) -> None:
    """py_spy.json: all threads, innermost frame first."""
    try:
        text = _dump(target.pid, ["--json"], TIMEOUT_S)
    except CaptureError:
        # A process that is stopped or in state D cannot be paused; it does not move either, so this is exact.
        text = _dump(target.pid, ["--json", "--nonblocking"], TIMEOUT_S)
    json.loads(text)
    target.directory.py_spy.write_text(text)


def glance(pid: int) -> list[dict[str, Any]]:
    """The threads' stacks without pausing the process: may fail or be slightly torn, and costs the job nothing."""
    threads = json.loads(_dump(pid, ["--json", "--nonblocking"], TIMEOUT_S))
    return list(threads)


def native_stack(target: Target) -> None:
    """native.txt: Python and C frames mixed."""
    text = _dump(target.pid, ["--native"], NATIVE_TIMEOUT_S)
    # The first line repeats the command line, which may hold secrets.
    target.directory.native.write_text(re.sub(r"^(Process \d+):.*", r"\1", text, count=1))
