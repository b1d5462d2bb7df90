"""The output directory, and what every run says about itself in run.json."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from nsadiag.commands import runs
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, make_private_dir, write_json
from nsadiag.evidence.secrets.masking import mask_command, mask_environment
from nsadiag.version import __version__

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "pandas",
    "py-spy",
    "flash-attn",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)


def prepare(out: Path | None, name: str, *, force: bool) -> RunDir:
    """The directory to write into, made private. Raises if it holds anything already, or cannot be written."""
    path = out or runs.FOLDER
    try:
        if out is None:
            path = new_directory(name)
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            if not force:
                raise UsageError(
                    f"{path} exists and is not empty", "choose another --out, or replace it with --force"
                )
            _remove_earlier_run(path)
        make_private_dir(path)
        if out is None:
            runs.enter(path)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise MachineError(
            f"cannot write to {path}: {error.strerror}", "choose another place with --out"
        ) from None
    return RunDir(path=path)


def new_directory(name: str) -> Path:
    """A directory of this run's own: others of the same name may start in the same second."""
    folder = make_private_dir(runs.FOLDER)
    stamp, safe_name = datetime.now().strftime("%Y%m%d-%H%M%S"), re.sub(r"[^\w.-]+", "-", name)[:40]
    for number in itertools.count(1):
        path = folder / f"{stamp}-{safe_name}{f'-{number}' if number > 1 else ''}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise AssertionError("numbers do not end")


def _remove_earlier_run(path: Path) -> None:
    """--force replaces what nsadiag wrote, not whatever someone pointed it at by mistake."""
    if not path.is_dir() or not (path / "run.json").exists():
        raise UsageError(
            f"{path} was not written by nsadiag, so --force does not remove it", "choose another --out"
        )
    shutil.rmtree(path)


def need(package: Literal["torch", "numpy"], for_what: str) -> None:
    """Raises MachineError where it is not installed; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise MachineError(
            f"{package} is not installed in this environment, and {for_what} needs it",
            f"pip install 'nsadiag[run]', or {package}; what reads evidence (attach, analyze, report, diff, top) needs none",
        )


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, str]:
    """The package versions of this environment, read without importing any package."""
    found = {"nsadiag": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_run(
    run: RunDir, *, kind: str, name: str, command: Sequence[str], started_at: str, **more: Any
) -> None:
    """Writes run.json; once at the start, so that a killed run has one too, and again at the end."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "name": name,
        "command": mask_command(command),
        "started_at": started_at,
        "host": platform.node(),
        "versions": versions(),
        "machine": machine(),
        "environment": mask_environment(os.environ),
        **more,
    }
    write_json(run.run, document)


def machine() -> dict[str, Any]:
    """The machine, as a reader of measurements needs to know it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = (
        sorted(p.name for p in Path("/proc/driver/nvidia/gpus").glob("*")) if sys.platform == "linux" else []
    )
    return {"cpus": cpus, "memory_gib": round(memory, 1), "gpus": len(gpus), "kernel": platform.release()}
