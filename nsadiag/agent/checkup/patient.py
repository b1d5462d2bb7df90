"""A small job of our own to try things on: one rank without torch, and one with it, as `nsadiag run` would start them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.captures.target import Target
from nsadiag.agent.job import scratch
from nsadiag.agent.job.launch import job_environment, new_run_id
from nsadiag.deadlines import programs
from nsadiag.deadlines.deadline import Deadline
from nsadiag.evidence.layout import RunDir

PLAIN = """
import json, sys
def waits_for_the_doctor():
    print(json.dumps({"python": sys.version.split()[0], "pid": __import__("os").getpid()}), flush=True)
    sys.stdin.read()
waits_for_the_doctor()
"""
WITH_TORCH = """
import json, sys
told = {"torch": None}
try:
    import torch
    told = {"torch": torch.__version__, "cuda": torch.version.cuda, "distributed": torch.distributed.is_available()}
    if told["cuda"] and told["distributed"] and torch.distributed.is_nccl_available():
        told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    told["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


class Patient:
    """One rank: `told` waits for what it says of itself."""

    def __init__(self, python: str, run: RunDir, sockets: Path, rank: int, script: str) -> None:
        environment = {
            **os.environ,
            **job_environment(run, new_run_id(), sockets, "none"),
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        }  # fmt: skip
        self.directory, self._socket = run.rank(rank), sockets / f"{rank}.sock"
        self._process = subprocess.Popen(
            [python, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,  # ends with us: its stdin does
        )  # fmt: skip
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def report(self, seconds: float) -> dict[str, Any]:
        """Raises TimeoutError, or ChildProcessError if it ended without a word."""
        deadline = Deadline(seconds)
        try:
            while True:
                with contextlib.suppress(ValueError):
                    return dict(json.loads(self._line(deadline)))
        except TimeoutError:
            raise TimeoutError(f"no word from Python in {seconds:g} s") from None

    def _line(self, deadline: Deadline) -> bytes:
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if select.select([out], [], [], deadline.left())[0]:
                data = os.read(out, 65536)
                if not data:
                    raise ChildProcessError(f"Python ended with exit code {self._exit_code(deadline)}")
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _exit_code(self, deadline: Deadline) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(deadline.left())
        return None

    def target(self) -> Target:
        """The target of captures."""
        return Target(pid=self.pid, directory=self.directory.capture(1), socket=self._socket)

    def end(self) -> None:
        programs.end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def patients(python: str, where: Path) -> Iterator[tuple[Patient, Patient]]:
    """Both, started; ended and their directory removed at the end. Raises OSError if `where` takes no directory."""
    folder = where / f".nsadiag-doctor-{os.getpid()}"
    started: list[Patient] = []
    # No interrupt between the start of a process and the note that it is ours to end.
    with scratch.made() as sockets, interrupts.held_off():
        try:
            folder.mkdir(mode=0o700)
            run = RunDir(path=folder)
            # The one with torch first: its import is what takes longest.
            for rank, script in ((1, WITH_TORCH), (0, PLAIN)):
                started.append(Patient(python, run, sockets, rank, script))
            with interrupts.let_in():
                yield started[1], started[0]
        finally:
            for patient in started:
                patient.end()
            shutil.rmtree(folder, ignore_errors=True)


def find_python(chosen: str | None) -> str:
    """The Python that jobs run with: the one named, else that of the environment, else ours."""
    return chosen or shutil.which("python") or shutil.which("python3") or sys.executable
