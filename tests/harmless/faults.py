"""A job under `nsadiag run`, with faults at system calls of its ranks or of the observer: what became of the job."""

from __future__ import annotations

import errno
import itertools
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import parity
import syscalls
from suite import PRELUDE, Program
from syscalls import HOLD, Call

ERRNOS = ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "ESTALE", "EROFS", "EACCES", "EMFILE", "ENOMEM", "EINTR")
GIVE_UP_S = 120.0
JOB = """
import os
import nets
import torch
from torch import nn

open("started", "w").close()
model = nets.Net()
total = 0
for n in range(40):
    nets.train(model, 1)
    print("step", n, flush=True)
    kind = type(f"Kind{n}", (nn.Module,), {"forward": lambda self, x: x + 1})
    total += kind()(torch.zeros(1)).item()
    torch.save(model.state_dict(), f"checkpoint{n % 3}.pt")
    try:
        torch.load("nowhere")
    except FileNotFoundError:
        print("handled")
with open("result.txt", "w") as file:
    file.write(f"{total} {nets.digest(model)}")
raise SystemExit(7)
"""
# One that is over at once.
SHORT_JOB = """
print("at work")
open("started", "w").close()
with open("result.txt", "w") as file:
    file.write("done")
raise SystemExit(7)
"""
EXIT_CODE = 7
RESULT = "result.txt"


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of a job."""

    started: bool
    result: str  # what it wrote in the end, or nothing
    exit_code: int  # of nsadiag
    left: int  # processes, when all was over
    calls: int  # of the observer
    calls_after: int  # the same, once the job was over
    stdout: str
    stderr: str


@dataclass
class Scene:
    """One run: its directories, and who in it is the observer."""

    where: Path
    out: Path
    observer: int = 0
    calls: int = 0
    rank: int = 0  # known from when it writes its result
    calls_after: int = 0

    def is_observer(self, call: Call) -> bool:
        return syscalls.family_of(call.pid) == self.observer

    def is_after(self, call: Call) -> bool:
        """Whether the observer makes it when the job is over; counts those."""
        if call.writes() and Path(call.path()).name == RESULT:
            self.rank = syscalls.family_of(call.pid)
        if not self.rank or not self.is_observer(call) or syscalls.is_alive(self.rank):
            return False
        self.calls_after += 1
        return True

    def is_ours(self, call: Call) -> bool:
        """Whether it would change something in the run directory."""
        return call.writes() and call.path().startswith(str(self.out))


MakeDecide = Callable[[Scene], Callable[[Call], int]]


def failing(name: str, *, from_nth: int, at_observer: bool) -> MakeDecide:
    """Writes to the run directory fail from the nth on: the ranks', or the observer's."""

    def make(scene: Scene) -> Callable[[Call], int]:
        count = itertools.count()

        def decide(call: Call) -> int:
            if scene.is_ours(call) and scene.is_observer(call) is at_observer and next(count) >= from_nth:
                return int(getattr(errno, name))
            return 0

        return decide

    return make


def frozen(*, from_nth: int, at_observer: bool) -> MakeDecide:
    """Writes to the run directory do not return, from the nth on."""

    def make(scene: Scene) -> Callable[[Call], int]:
        count = itertools.count()

        def decide(call: Call) -> int:
            affected = scene.is_ours(call) and scene.is_observer(call) is at_observer
            return HOLD if affected and next(count) >= from_nth else 0

        return decide

    return make


def killed_observer(nth: int) -> MakeDecide:
    """SIGKILL for nsadiag, at its nth system call of those that are watched."""

    def make(scene: Scene) -> Callable[[Call], int]:
        def decide(call: Call) -> int:
            if scene.is_observer(call):
                scene.calls += 1
                if scene.calls == nth:
                    syscalls.kill(scene.observer)
            return 0

        return decide

    return make


def signalled_observer(number: int, *nths: int) -> MakeDecide:
    """That signal for nsadiag, at the nth of its system calls after the job's end."""

    def make(scene: Scene) -> Callable[[Call], int]:
        def decide(call: Call) -> int:
            if scene.is_after(call) and scene.calls_after in nths:
                syscalls.kill(scene.observer, number)
            return 0

        return decide

    return make


def nothing(scene: Scene) -> Callable[[Call], int]:
    """No fault; calls are counted."""
    counting = killed_observer(-1)(scene)

    def decide(call: Call) -> int:
        scene.is_after(call)
        return counting(call)

    return decide


def fate_of(where: Path, make: MakeDecide, *, job: str = JOB, options: tuple[str, ...] = ()) -> Fate:
    """Runs the job under nsadiag with a fault, to the end of all its processes."""
    program = Program(name="faults/job", how="rank", files=())
    work, out, mark = where / "work", where / "out", uuid.uuid4().hex
    shutil.rmtree(where, ignore_errors=True)
    (where / "home").mkdir(parents=True)
    work.mkdir()
    for file in PRELUDE.glob("*.py"):
        shutil.copy(file, work)
    (work / "train.py").write_text(job)
    (where / "stdin").touch()
    scene = Scene(where=where, out=out)
    command = parity.watched(program.command(), out, "light")
    command[2:2] = options
    env = parity.environment(program, where / "home", mark)
    decide = make(scene)
    run = syscalls.Supervised(
        command, lambda call: decide(call) if scene.observer else 0, work, env, where / "stdin"
    )
    nsadiag = run.start()
    scene.observer = nsadiag.pid
    stdout, stderr = _communicate(nsadiag, run)
    result = _result(work, mark)
    fate = Fate(
        started=(work / "started").exists(), result=result, exit_code=nsadiag.returncode,
        left=_left(mark), calls=scene.calls, calls_after=scene.calls_after, stdout=stdout, stderr=stderr,
    )  # fmt: skip
    parity.end(mark)
    return fate


def _communicate(nsadiag: subprocess.Popen[bytes], run: syscalls.Supervised) -> tuple[str, str]:
    """A job that hangs in a frozen file system is let go after a while: what it has not done by then, it never did."""
    said = ""
    try:
        shown = nsadiag.communicate(timeout=GIVE_UP_S)
    except subprocess.TimeoutExpired:
        run.release()
        said = "released\n"
        try:
            shown = nsadiag.communicate(timeout=GIVE_UP_S)
        except subprocess.TimeoutExpired:
            said = "killed\n"
            nsadiag.kill()
            shown = nsadiag.communicate()
    stdout, stderr = (each.decode(errors="replace") for each in shown)
    return stdout, said + stderr


def _result(work: Path, mark: str) -> str:
    """What the job wrote in the end; it may outlive nsadiag, and is waited for as long as it lives."""
    deadline = time.monotonic() + GIVE_UP_S
    while parity.marked(mark) and not (work / RESULT).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return (work / "result.txt").read_text() if (work / RESULT).exists() else ""


def _left(mark: str) -> int:
    """Processes that stay although the job is over."""
    deadline = time.monotonic() + 30
    while parity.marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(parity.marked(mark))
