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
from nsadiag.evidence.layout import write_json, write_private
from nsadiag.evidence.secrets import MASK, SECRET_NAME, mask_text

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


def python_stack(target: Target) -> dict[str, Any]:
    """py_spy.json: the stacks of all threads, and which of them owns the GIL; read without the process's help."""
    arguments = ["--json", *(["--locals"] if target.with_locals else [])]
    # A process that is stopped or in state D cannot be paused; it does not move either, so the other way is exact.
    modes = [[], ["--nonblocking"]] if target.may_pause else [["--nonblocking"], []]
    try:
        text, mode = _dump(target.pid, arguments + modes[0], TIMEOUT_S), modes[0]
    except CaptureError:
        text, mode = _dump(target.pid, arguments + modes[1], TIMEOUT_S), modes[1]
    write_json(target.directory.py_spy, [_shown(thread) for thread in json.loads(text)])
    return {"paused": not mode}


def _shown(thread: dict[str, Any]) -> dict[str, Any]:
    """Without the command line, and with locals masked by their names."""
    for frame in thread["frames"]:
        for local in frame.get("locals") or []:
            if SECRET_NAME.search(local.get("name", "")):
                local["repr"] = MASK
    return {**thread, "process_info": None}


def glance(pid: int, *, with_locals: bool = False) -> list[dict[str, Any]]:
    """The threads' stacks without pausing the process: may fail or be slightly torn, and costs the job nothing.

    Values of variables are for who asks, and are not to be written down.
    """
    arguments = ["--json", "--nonblocking", *(["--locals"] if with_locals else [])]
    threads = json.loads(_dump(pid, arguments, TIMEOUT_S))
    return list(threads)


def native_stack(target: Target) -> None:
    """native.txt: Python and C frames mixed, such as the NCCL call that a rank is in."""
    text = _dump(target.pid, ["--native"], NATIVE_TIMEOUT_S)
    # The first line repeats the command line, which may hold secrets.
    plain = re.sub(r"^(Process \d+):.*", r"\1", text, count=1)
    write_private(target.directory.native, mask_text(plain))
