"""Runs the real command, hears from its job when it is ready, and proves that nothing is left running."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from support.processes.warm_python import PipedProcess, WarmPython

BIN = Path(sys.executable).parent
MARK = "TEST_JOB_MARK"  # in the environment of every process that a test started, whoever its parent is
GIVE_UP_S = 300.0  # a limit for what hangs, not for what a busy machine makes slow


def wait_until(happened: Callable[[], object], what: str, seconds: float = GIVE_UP_S) -> None:
    """Returns as soon as it did."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.01)


class Signals:
    """A pipe with a name: each line that a job writes to it says that it has come so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Open at both ends, so that neither a writer nor we ever wait for the other to open.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""

    def wait(self, seconds: float = GIVE_UP_S) -> str:
        """The next line."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._pipe], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"the job gave no signal in {seconds:g} s; so far {self._unread!r}"
            self._unread += os.read(self._pipe, 65536)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._pipe)


Started = subprocess.Popen[str] | PipedProcess


class Jobs:
    """Starts `nsadiag` in `directory`; `left` is what it or its job left running.

    With `warm` it is forked from a process that has imported it, unless it is to be started `behind` a command, or with
    variables that Python reads when it starts.
    """

    def __init__(self, directory: Path, warm: WarmPython | None = None) -> None:
        self.directory = directory
        self._warm = warm
        self._forked: list[PipedProcess] = []
        self.mark = uuid.uuid4().hex
        self.signals = Signals(directory / "signals")
        os.mkfifo(directory / "go")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        fixed = {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "SIGNALS": str(self.signals.path)}
        fixed |= {"GO": str(self.directory / "go")}
        return {**os.environ, **fixed, **(more or {}), MARK: self.mark}

    def start(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, behind: Sequence[str] = ()
    ) -> Started:
        """`nsadiag ARGUMENTS`, begun; `behind` is a command that starts it."""
        for_python = any(name.startswith("PYTHON") for name in env or {})
        if self._warm is not None and not behind and not for_python:
            words, environment = map(str, arguments), self.environment(env)
            forked = self._warm.start_piped(BIN / "nsadiag", *words, cwd=self.directory, env=environment)
            self._forked.append(forked)
            return forked
        return subprocess.Popen(
            [*behind, str(BIN / "nsadiag"), *map(str, arguments)],
            cwd=self.directory,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Away from the terminal's own Ctrl-C, as a shell starts each command line.
            start_new_session=True,
        )

    def run(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        behind: Sequence[str] = (),
        seconds: float = GIVE_UP_S,
    ) -> subprocess.CompletedProcess[str]:
        """`nsadiag ARGUMENTS`, finished, with nothing left behind."""
        return self.finish(self.start(*arguments, env=env, behind=behind), seconds)

    def finish(self, started: Started, seconds: float = GIVE_UP_S) -> subprocess.CompletedProcess[str]:
        stdout, stderr = started.communicate(timeout=seconds)
        assert self.left() == {}, f"left running after:\n{stderr}"
        return subprocess.CompletedProcess(started.args, started.returncode, stdout, stderr)

    def go(self) -> None:
        """Lets a job go on that waits to read from the pipe named GO."""
        (self.directory / "go").write_text("go\n")

    def left(self) -> dict[int, str]:
        """Living processes that came of what was started here, by pid, and their command lines."""
        found = {pid: line for pid, line in marked(f"{MARK}={self.mark}") if pid != os.getpid()}
        # Of a forked process /proc shows the environment that its parent began with.
        return found | {f.pid: " ".join(f.args) for f in self._forked if f.poll() is None}

    def close(self) -> None:
        """Ends whatever a failed test left."""
        self.close_left()
        self.signals.close()

    def close_left(self) -> None:
        """Ends what still runs of all that was started here."""
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.left(), "the last of them gone")


def marked(mark: str) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(") ")[2][:1]
            if state != "Z" and mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield (
                    int(folder.name),
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
