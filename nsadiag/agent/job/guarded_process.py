"""A command under a guard: what `subprocess.Popen` is for a child, for one whose whole family is to be known."""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from nsadiag.agent import processes
from nsadiag.agent.job.guard import PR_SET_CHILD_SUBREAPER
from nsadiag.agent.processes import Process, identify

PROGRAM = Path(__file__).with_name("guard.py")
CLOSE_S = 15.0  # in which a guard has given up even what waits in the kernel
PAUSE_S = 0.05
UNKNOWN_CODE = 1  # of a launcher whose guard was killed, where somebody else has become its parent


class Guarded:
    """A command, started under a guard of its own. Raises OSError where the command cannot be started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        stdin: int | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        die_with_me: bool,
        run: Path | None = None,
        scratch: Sequence[Path] = (),
    ) -> None:
        """`run` and `scratch` are the run directory and what lies elsewhere for it, for a guard that outlives us.

        `stdin` is as `subprocess.Popen` takes it.
        """
        self.returncode: int | None = None
        self._unread = b""
        # Should the guard be killed, its children become ours.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._control, theirs = socket.socketpair()
        words = _copy_of_stderr()
        request = {
            "command": [os.fsencode(word) for word in command],
            "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            "cwd": None if cwd is None else os.fsencode(cwd),
            "pass_fds": list(pass_fds),
            "stderr": words,
            "group": os.getpgrp(),
            "die_with_me": die_with_me,
            "run": None if run is None else str(run.resolve()),
            "scratch": [str(path) for path in scratch],
        }
        with theirs:
            try:
                # Held off until the guard has its own way with signals: a Ctrl-C would end it at its start.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                try:
                    self._guard = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(PROGRAM), str(theirs.fileno())],
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        pass_fds=(theirs.fileno(), words, *pass_fds),
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            finally:
                os.close(words)
        self.stdin = self._guard.stdin
        self.guard = identify(self._guard.pid)
        self.pid = self._start({**request, "mask": [int(number) for number in mask]})

    def _start(self, request: dict[str, Any]) -> int:
        data = marshal.dumps(request)
        said = "lost 0"
        with contextlib.suppress(OSError):
            self._control.sendall(len(data).to_bytes(8, "little") + data)
            said = self._line(None) or said
        what, _, number = said.partition(" ")
        if what == "started":
            return int(number)
        self._guard.wait()
        self._control.close()
        code = int(number)
        raise OSError(code, os.strerror(code)) if what == "error" else OSError("its guard did not start")

    def _line(self, seconds: float | None) -> str | None:
        """The next line of the guard, waited for; None if there is none, "" if the guard is gone."""
        if self._control.fileno() < 0:
            return None  # we have left it: its guard tells us nothing more
        deadline = None if seconds is None else time.monotonic() + seconds
        waiting = (
            select.poll()
        )  # `select` takes no descriptor from 1024 on: beside as many connections this may be one
        waiting.register(self._control, select.POLLIN)
        while b"\n" not in self._unread:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not waiting.poll(None if left is None else math.ceil(1000 * left)):
                return None
            try:
                data = self._control.recv(4096)
            except OSError:
                data = b""
            if not data:
                return ""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def poll(self) -> int | None:
        """The launcher's exit code (negative: signal), or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, seconds: float | None = None) -> int:
        """The same, waited for. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            line = self._line(seconds)
            if line is None:
                raise subprocess.TimeoutExpired(self._guard.args, seconds or 0.0)
            code = int(line.partition(" ")[2]) if line else self._in_its_guards_place(seconds)
            if code is None:
                raise subprocess.TimeoutExpired(self._guard.args, seconds or 0.0)
            self.returncode = code
        return self.returncode

    def _in_its_guards_place(self, seconds: float | None) -> int | None:
        """The guard was killed, and the launcher is our child: its exit code, or None while it runs."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return UNKNOWN_CODE
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                return None
            time.sleep(PAUSE_S)

    def family(self) -> set[Process]:
        """Every living process of it, whoever its parent is and whatever its environment."""
        return processes.with_children([self.guard]) - {self.guard} if self.guard else set()

    def tell(self, word: str) -> None:
        """`ending`: what is left is ended should we die. `leave`: it stays. `stop`, `continue`: as by Ctrl-Z and fg.

        `signal:N`: the launcher gets that signal.
        """
        with contextlib.suppress(OSError):
            self._control.sendall(f"{word}\n".encode())

    def kill(self) -> None:
        """Ends the launcher at once."""
        launcher = identify(self.pid)
        if launcher is not None and self.returncode is None:
            processes.send(launcher, signal.SIGKILL)

    def close(self) -> None:
        """Ends whoever is left, and the guard."""
        self.tell("close")
        try:
            self._guard.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(CLOSE_S)
        self._control.close()

    def leave(self) -> None:
        """The job stays as it is, and its guard with it."""
        self.tell("leave")
        self._control.close()
        self._guard.returncode = 0  # nobody waits for it: no warning about a child that runs on


def _copy_of_stderr() -> int:
    """A descriptor on which a guard that is left alone says so; /dev/null if we have none."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def inherited() -> list[int]:
    """Descriptors above 2 that were given to us to pass on: `3< file`, `<(command)`. What we open ourselves is not."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)
