"""Programs that are run for their answer: each has a deadline, and ends at it with everything that it started."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nsadiag.deadlines.deadline import Deadline

READ_BYTES = 65536
MOST_OUTPUT = 256 * 2**20
# For the exit code of a program that is killed: one that waits in a driver never has one.
KILLED_S = 0.5
# For output of a program that has ended, while one that it started holds the pipe open.
HELD_S = 0.2
TICK_S = 0.05
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The exit code (negative: signal) and output of a program."""

    returncode: int
    stdout: str
    stderr: str


class Unfinished(TimeoutError):
    """A program that was ended at its deadline; `stdout` and `stderr` hold its output so far."""

    def __init__(self, program: str, seconds: float, stdout: str, stderr: str) -> None:
        super().__init__(f"{program} gave no answer in {seconds:g} s")
        self.stdout, self.stderr = stdout, stderr


def run(
    command: Sequence[str],
    *,
    seconds: float,
    text: str | None = None,
    stdout: int | None = None,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = 0.0,
    stderr_tail: int | None = None,
    unwanted: threading.Event | None = None,
) -> Finished:
    """Runs the program to its end. Raises OSError where it cannot be started, or writes too much, Unfinished at its deadline.

    `stderr_tail`: of its stderr that many bytes are kept, and it may write as much as it likes. `text` is its stdin. `stdout`: a descriptor of ours that takes its output, which is captured otherwise. `grace_s`: from
    SIGTERM to SIGKILL, for a program that has something to end in good order. `unwanted`: once it is set, by another thread, the
    deadline has come.
    """
    deadline = Deadline(seconds)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE if stdout is None else None,
        cwd=cwd, env=env, start_new_session=True,
    )  # fmt: skip
    _running.add(process)
    exchange = _Exchange(process, (text or "").encode(errors="surrogateescape"), stderr_tail)
    try:
        exchange.until(deadline, unwanted or threading.Event())
        code = process.wait(deadline.left())
    except (TimeoutError, subprocess.TimeoutExpired):
        end(process, grace_s)
        exchange.drain()
        raise Unfinished(
            command[0], seconds, exchange.text(process.stdout), exchange.text(process.stderr)
        ) from None
    except BaseException:
        end(process, grace_s)
        raise
    finally:
        _running.discard(process)
        exchange.close()
    return Finished(
        returncode=code, stdout=exchange.text(process.stdout), stderr=exchange.text(process.stderr)
    )


def end_running() -> None:
    """Ends programs that other threads still wait for: whoever leaves the process leaves none of them behind."""
    for process in tuple(_running):
        end(process)


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str], grace_s: float = 0.0) -> None:
    """Ends a process that leads a session, and its group; returns within `grace_s` and half a second, whatever it waits for."""
    if grace_s:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    _signal(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def _signal(process: subprocess.Popen[bytes] | subprocess.Popen[str], number: int) -> None:
    if process.returncode is None:  # the number of one that is waited for may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


class _Exchange:
    """The bytes that go to a program and come from it, none of which is waited for beyond a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], text: bytes, stderr_tail: int | None) -> None:
        self._process, self._unsent, self._stderr_tail = process, memoryview(text), stderr_tail
        self._heard: dict[IO[bytes], bytearray] = {}
        self._size = 0
        self._selector = selectors.DefaultSelector()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._heard[stream] = bytearray()
                self._selector.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)

    def until(self, deadline: Deadline, unwanted: threading.Event) -> None:
        """Returns when its output has ended, or it has. Raises TimeoutError, and OSError for too much output."""
        while self._selector.get_map():
            self._turn(min(TICK_S, deadline.left()))
            if unwanted.is_set():
                raise TimeoutError
            if self._process.poll() is not None:
                self.drain()
                return

    def drain(self) -> None:
        """Takes what is on its way from a program that has ended."""
        until = time.monotonic() + HELD_S
        while any(stream in self._heard for stream in self._open()) and time.monotonic() < until:
            self._turn(TICK_S)

    def text(self, stream: IO[bytes] | None) -> str:
        return self._heard[stream].decode(errors="replace") if stream is not None else ""

    def close(self) -> None:
        self._selector.close()
        for stream in (self._process.stdin, *self._heard):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _open(self) -> list[object]:
        return [key.fileobj for key in self._selector.get_map().values()]

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._process.stdin:
                self._write(self._process.stdin)
            else:
                self._read(key.fileobj)  # type: ignore[arg-type] # one of ours

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._unsent = self._unsent[os.write(stream.fileno(), self._unsent[:READ_BYTES]) :]
        except BrokenPipeError:  # it reads no further, which is its own affair
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._selector.unregister(stream)
            with contextlib.suppress(OSError):
                stream.close()

    def _read(self, stream: IO[bytes]) -> None:
        chunk = os.read(stream.fileno(), READ_BYTES)
        if not chunk:
            self._selector.unregister(stream)
            return
        heard = self._heard[stream]
        heard += chunk
        if self._stderr_tail is not None and stream is self._process.stderr:
            del heard[: -self._stderr_tail]
            return
        self._size += len(chunk)
        if self._size > MOST_OUTPUT:
            raise OSError(errno.EFBIG, f"more than {MOST_OUTPUT >> 20} MiB of output")
