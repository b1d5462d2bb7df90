"""Starts a job with the worker inside every Python process of it, without a change to its command line."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import nsadiag
from nsadiag.agent.processes import RUN_ID, Process, identify
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, this_node

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"
PR_SET_PDEATHSIG = 1
# Entries. The worker adds the older spelling where torch is too old for this one.
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    # An event on the device before each collective, so that one that has begun is told from one that is queued.
    "TORCH_NCCL_ENABLE_TIMING": "1",
}


class Job(Protocol):
    """Something that runs, and that the watch can ask and end."""

    run_id: str
    socket_dir: Path

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def roots(self) -> list[Process]:
        """The processes that are not ranks: launchers and their helpers' ancestors."""

    def reported_ends(self) -> dict[int, int]:
        """Exit code by rank (negative: signal), where the launcher told."""

    def abandon(self) -> None:
        """Gives up a launcher that does not end by itself."""


def job_environment(run: RunDir, run_id: str, socket_dir: Path, probes: str) -> dict[str, str]:
    """What is added to the user's environment; PYTHONPATH keeps what it had, behind our bootstrap."""
    path = os.pathsep.join(p for p in (str(BOOTSTRAP), os.environ.get("PYTHONPATH", "")) if p)
    added = {
        "NSADIAG_RUN_DIR": str(run.path.resolve()),
        "NSADIAG_SOCKET_DIR": str(socket_dir),
        "NSADIAG_PROBES": probes,
        RUN_ID: run_id,
        "PYTHONPATH": path,
    }
    return {**{k: v for k, v in FLIGHT_RECORDER.items() if k not in os.environ}, **added}


def new_run_id() -> str:
    return uuid.uuid4().hex


def make_socket_dir() -> AbstractContextManager[str]:
    """A short private directory: a unix socket's path has room for 107 bytes."""
    return tempfile.TemporaryDirectory(prefix="nsadiag-", ignore_cleanup_errors=True)


def check_command(command: list[str]) -> None:
    """Raises UsageError if the first word is no program, or a script named on the line is not there."""
    if not command:
        raise UsageError(
            "no command given", "put the job after `--`: nsadiag run -- torchrun --nproc-per-node 2 train.py"
        )
    if command[0].startswith("-"):
        raise UsageError(
            f"no such option: {command[0]}", "nsadiag run --help lists them; the job itself goes behind --"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"no such command: {command[0]}", "give the launcher line as you would type it without nsadiag"
        )
    check_script(command[1:])


def check_script(words: list[str]) -> None:
    """Raises UsageError if the first word that names a Python script names one that is not there."""
    # A word with a space in it is a line for a shell, which may well change directory first.
    script = next((word for word in words if word.endswith(".py") and " " not in word), None)
    module = "-m" in words or "--module" in words
    if script and not module and not Path(script).exists():
        raise UsageError(f"no such script: {script}", f"paths are relative to {Path.cwd()}")


def die_with_parent() -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask_kernel


class CommandJob:
    """A launcher line, run as it is in a session of its own, with its output in files."""

    def __init__(
        self,
        command: list[str],
        run: RunDir,
        socket_dir: Path,
        *,
        probes: str,
        env: Mapping[str, str] | None = None,
        leave: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self.run_id, self.socket_dir = new_run_id(), socket_dir
        node = make_private_dir(run.node(this_node()))
        self.stdout, self.stderr = node / "launcher.stdout.log", node / "launcher.stderr.log"
        with open_private(self.stdout, "wb") as out, open_private(self.stderr, "wb") as err:
            environment = {
                **os.environ,
                **(env or {}),
                **job_environment(run, self.run_id, socket_dir, probes),
            }
            for name, file in (("NSADIAG_STDOUT_ID", out), ("NSADIAG_STDERR_ID", err)):
                status = os.fstat(file.fileno())
                environment[name] = f"{status.st_dev}:{status.st_ino}"
            try:
                self._popen = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=None if leave else die_with_parent(),  # noqa: PLW1509 - one prctl call
                )
            except OSError as error:
                raise MachineError(f"cannot start {command[0]}: {error.strerror}") from None
        self._root = identify(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def roots(self) -> list[Process]:
        return [self._root] if self._root else []

    def reported_ends(self) -> dict[int, int]:
        return {}

    def abandon(self) -> None:
        self._popen.kill()
        self._popen.wait()
