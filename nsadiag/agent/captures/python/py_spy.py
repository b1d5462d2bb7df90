"""Python and native stacks by py-spy, which reads the process's memory and needs no help from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.failure import Refused
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.deadlines import programs
from nsadiag.evidence.documents.python_stacks import PythonThread, Threads, as_one_stack
from nsadiag.evidence.documents.values import rows_of
from nsadiag.evidence.layout import write_json, write_private
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import MASK, is_secret_name

NAMED = "NSADIAG_PY_SPY"  # such as a copy that has the capability to trace
TIMEOUT_S = 5.0
NATIVE_TIMEOUT_S = 15.0
MOST_LOCALS = 200  # each --locals has py-spy show 128 characters more of a value


def find_py_spy() -> str:
    """The one that the environment names, that beside this Python, that of its package, or on PATH. Raises CaptureError."""
    named = os.environ.get(NAMED)
    if named and not os.access(named, os.X_OK):
        raise Refused(f"{NAMED} is {named}, which is no program")
    if named:
        return named
    beside = Path(sys.executable).with_name("py-spy")
    if beside.exists():
        return str(beside)
    brought = _of_package()
    program = next((p for p in brought or () if os.access(p, os.X_OK)), None) or shutil.which("py-spy")
    if not program:
        raise Refused(
            "py-spy is not installed"
            if brought is None
            else "the package py-spy is installed, and its program is missing (pip install --force-reinstall py-spy)"
        )
    return program


def _of_package() -> list[str] | None:
    """Its programs, which lie elsewhere where the package is seen by a path from elsewhere; None without a package."""
    from importlib import metadata

    try:
        files = metadata.files("py-spy") or []
    except metadata.PackageNotFoundError:
        return None
    return [str(Path(str(file.locate())).resolve()) for file in files if file.name == "py-spy"]


def _dump(pid: int, arguments: list[str], timeout_s: float) -> str:
    try:
        done = programs.run([find_py_spy(), "dump", *arguments, "--pid", str(pid)], seconds=timeout_s)
    except TimeoutError:
        raise CaptureError(f"py-spy gave no answer in {timeout_s:g} s") from None
    if done.returncode:
        _check_permission(pid)
        lines = done.stderr.strip().splitlines()
        failure = Refused if "permission denied" in done.stderr.lower() else CaptureError
        raise failure(f"py-spy: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _check_permission(pid: int) -> None:
    """py-spy takes a process that it may not read for one that is not there. Raises CaptureError."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except PermissionError:
        raise Refused(
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
            if is_secret_name(local.get("name", "")):
                local["repr"] = MASK
    return {**thread, "process_info": None}


def nonblocking_stacks(pid: int, *, with_locals: bool = False) -> Threads:
    """The threads' stacks without pausing the process: may fail or be slightly torn, and costs the job nothing.

    Values of variables are for who asks, and are not to be written down.
    """
    arguments = ["--json", "--nonblocking", *(["--locals"] if with_locals else [])]
    threads = rows_of(PythonThread, json.loads(_dump(pid, arguments, TIMEOUT_S)))
    return as_one_stack(threads, lambda tid: _kernel_name(pid, tid))


def stacks_with_values(pid: int) -> Threads:
    """The threads' stacks with values as long as py-spy can show them; they are not to be written down."""
    wide = ["--json", *["--locals"] * MOST_LOCALS]
    try:
        text = _dump(pid, [*wide, "--nonblocking"], NATIVE_TIMEOUT_S)
    except CaptureError:
        text = _dump(pid, wide, NATIVE_TIMEOUT_S)
    return rows_of(PythonThread, json.loads(text))


def _kernel_name(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text()
    except OSError:
        return ""


def native_stack(target: Target) -> None:
    """native.txt: Python and C frames mixed, such as the NCCL call that a rank is in."""
    text = _dump(target.pid, ["--native"], NATIVE_TIMEOUT_S)
    # The first line repeats the command line, which may hold secrets.
    plain = re.sub(r"^(Process \d+):.*", r"\1", text, count=1)
    write_private(target.directory.native, mask_text(plain))
