"""Starts a job with the worker inside every Python process of it, without a change to its command line."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import nsadiag
from nsadiag.agent import processes
from nsadiag.agent.job import scratch
from nsadiag.agent.job.entry_script import check_script
from nsadiag.agent.job.guarded_process import Guarded, inherited
from nsadiag.agent.processes import RUN_ID, Process, identify
from nsadiag.errors import MachineError, UsageError, did_you_mean
from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, this_node

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"
LAUNCHERS = ("torchrun", "python", "python3", "accelerate", "deepspeed", "mpirun", "srun", "bash")
ABANDON_S = 5.0  # for what waits in the kernel (state D), and does not end
# Entries. The worker adds the older spelling where torch is too old for this one.
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    # An event on the device before each collective, so that one that has begun is told from one that is queued.
    "TORCH_NCCL_ENABLE_TIMING": "1",
}


OLDER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_started = False


class Job(Protocol):
    """Something that runs, and that the watch can ask and end."""

    run_id: str
    socket_dir: Path

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def roots(self) -> list[Process]:
        """The processes that are not ranks: launchers and their helpers' ancestors."""

    def family(self) -> set[Process]:
        """All of its processes, by whatever tells them from others."""

    def reported_ends(self) -> dict[int, int]:
        """Exit code by rank (negative: signal), where the launcher told."""

    def ending(self) -> None:
        """From here on it is being ended, whether or not we live to do it."""

    def abandon(self) -> None:
        """Gives up a launcher that does not end by itself."""


@dataclass(kw_only=True)
class ForeignJob:
    """A job that nsadiag has not started, and does not end: over once whoever follows its ranks says so."""

    socket_dir: Path
    run_id: str = ""
    over: bool = False

    def poll(self) -> int | None:
        return 0 if self.over else None

    def roots(self) -> list[Process]:
        return []

    def family(self) -> set[Process]:
        return set()

    def reported_ends(self) -> dict[int, int]:
        return {}

    def ending(self) -> None:
        return

    def abandon(self) -> None:
        return


def job_environment(run: RunDir, run_id: str, socket_dir: Path, probes: str) -> dict[str, str]:
    """Variables to add to the user's environment; PYTHONPATH keeps what it had, behind our bootstrap."""
    users = os.environ.get("PYTHONPATH", "")
    added = {
        "NSADIAG_RUN_DIR": str(run.path.resolve()),
        "NSADIAG_SOCKET_DIR": str(socket_dir),
        "NSADIAG_PROBES": probes,
        RUN_ID: run_id,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(BOOTSTRAP), users))),
        # The bootstrap puts back what an entry of ours takes the place of.
        "NSADIAG_NO_PYTHONPATH": "" if users else "1",
    }
    return {**recorder_environment(os.environ), **added}


def recorder_environment(users: Mapping[str, str]) -> dict[str, str]:
    """Variables that switch the flight recorder on; a size that the user chose stays, by whatever name."""
    chosen = {*users, *(("TORCH_FR_BUFFER_SIZE",) if OLDER_SIZE in users else ())}
    return {name: value for name, value in FLIGHT_RECORDER.items() if name not in chosen}


def has_started() -> bool:
    """Whether this process has started a job."""
    return _started


def new_run_id() -> str:
    return uuid.uuid4().hex


def _instead_of(command: list[str]) -> str:
    """The hint for a first word that is no program."""
    word = command[0]
    if word.endswith(".py") and Path(word).is_file():
        return f"start it by a program: python {shlex.join(command)}, or torchrun --nproc-per-node 2 {shlex.join(command)}"
    beside = Path(sys.executable).with_name(word)
    if "/" not in word and os.access(beside, os.X_OK):
        return f"it is beside nsadiag's Python, which is not on PATH: give {beside}, or activate that environment"
    return (
        did_you_mean(word, [each for each in LAUNCHERS if each != word])
        or "give the launcher line as you would type it without nsadiag"
    )


def check_command(command: list[str]) -> None:
    """Raises UsageError if the first word is no program, or the script that the line runs is not there."""
    if not command:
        raise UsageError(
            "no command given", "put the job after `--`: nsadiag run -- torchrun --nproc-per-node 2 train.py"
        )
    if command[0].startswith("-"):
        raise UsageError(
            f"no such option: {command[0]}", "nsadiag run --help lists them; the job itself goes behind --"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"no such command: {command[0]}", _instead_of(command))
    check_script(command)


class CommandJob:
    """A launcher line, run as it is under a guard, in a process group of its own, with its output in files."""

    def __init__(
        self,
        command: list[str],
        run: RunDir,
        socket_dir: Path,
        *,
        probes: str,
        env: Mapping[str, str] | None = None,
        die_with_me: bool = True,
        in_front: bool = False,
        cwd: Path | None = None,
        elsewhere: Sequence[Path] = (),
    ) -> None:
        """`in_front`: it has our stdin and what else was given to us to pass on. `elsewhere`: directories of its own."""
        processes.check_proc()
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
                self._guarded = Guarded(
                    command,
                    env=environment,
                    cwd=cwd,
                    stdin=None if in_front and _is_open(0) else subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=inherited() if in_front else (),
                    die_with_me=die_with_me,
                    run=run.path,
                    scratch=(socket_dir, *elsewhere),
                )
            except OSError as error:
                raise MachineError(f"cannot start {command[0]}: {error.strerror or error}") from None
        global _started
        _started = True
        for path in (socket_dir, *elsewhere):
            scratch.add_owner(path, self._guarded.guard)
        self._root = identify(self._guarded.pid)
        self._left = False

    @property
    def pid(self) -> int:
        return self._guarded.pid

    def poll(self) -> int | None:
        return self._guarded.poll()

    def roots(self) -> list[Process]:
        return [self._root] if self._root else []

    def family(self) -> set[Process]:
        return self._guarded.family() | processes.of_run(self.run_id)

    def reported_ends(self) -> dict[int, int]:
        return {}

    def ending(self) -> None:
        self._guarded.tell("ending")

    def pause(self) -> None:
        """As Ctrl-Z does it: to be undone by `resume`."""
        self._guarded.tell("stop")

    def resume(self) -> None:
        self._guarded.tell("continue")

    def pass_on(self, number: int) -> None:
        """A signal for the launcher that was sent to us, who stand in its place."""
        self._guarded.tell(f"signal:{number}")

    def abandon(self) -> None:
        self._guarded.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guarded.wait(ABANDON_S)

    def close(self) -> None:
        """Nothing of it is left afterwards, unless it was to be left."""
        if not self._left:
            self._guarded.close()

    def leave(self) -> None:
        """It stays as it is when we end; its guard removes what lies elsewhere for it."""
        self._left = True
        self._guarded.leave()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
