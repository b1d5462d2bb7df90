"""Processes of Python that have imported torch already: forked from one that has, and each a fresh `__main__`.

To import torch, and dynamo behind its first optimizer, takes five seconds of a processor; to fork after it, a hundredth of
one. A rank begins as one on a warm launcher does (nsadiag/agent/job/warm_rank.py). For tests whose subject is what comes
after the import. The same serves the command itself, which imports half a second's worth of its own: PRELOAD_COMMAND.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

PRELOAD = (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "nsadiag.worker.startup",
    "nsadiag.worker.session",
)
# Of `nsadiag run`, `matrix` and the others, whichever it is; without torch, as they are.
PRELOAD_COMMAND = (
    "nsadiag.cli",
    "nsadiag.commands.run",
    "nsadiag.commands.matrix.run",
    "nsadiag.commands.attach.local",
    "nsadiag.commands.analyze",
    "nsadiag.analysis.verdict",
    "nsadiag.reports.formats.registry",
)
MOST_BYTES = 1 << 20  # of a request: mostly the environment
Request = dict[str, Any]


class Forked:
    """Used like subprocess.Popen."""

    def __init__(self, args: Sequence[str], pid: int, status: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PipedProcess(Forked):
    """What it prints is read from pipes."""

    def __init__(self, args: Sequence[str], pid: int, status: int, out: int, err: int) -> None:
        super().__init__(args, pid, status)
        self.stdout: TextIO = os.fdopen(out)
        self.stderr: TextIO = os.fdopen(err)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        streams = (self.stdout, self.stderr)
        printed = ["", ""]

        def read(number: int) -> None:
            printed[number] = streams[number].read()

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in (0, 1)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(_left_until(deadline))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(_left_until(deadline))
        for stream in streams:
            stream.close()
        return printed[0], printed[1]


def _left_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0)


class WarmProcess(Forked):
    """What it prints is kept in memory."""

    def __init__(self, args: Sequence[str], pid: int, status: int, out: int, err: int) -> None:
        super().__init__(args, pid, status)
        self._printed = [os.fdopen(each, errors="replace") for each in (out, err)]

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        for file in self._printed:
            file.seek(0)
        out, err = (file.read() for file in self._printed)
        return out, err

    def close(self) -> None:
        """Ends it, and all that it started and that did not leave its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for file in self._printed:
            file.close()


class WarmPython:
    """Starts them; the process they are forked from is started by the first."""

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._preload = preload
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(
        self, script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], rank: bool = False
    ) -> WarmProcess:
        """`python SCRIPT ARGUMENTS`; a `rank` is recorded, as where our bootstrap is on its path."""
        out, err = (os.memfd_create(name) for name in ("stdout", "stderr"))
        said = {"argv": [str(script), *arguments], "cwd": str(cwd), "env": dict(env), "rank": rank}
        pid, status = self._fork(said, os.dup(out), os.dup(err))
        return WarmProcess(said["argv"], pid, status, out, err)

    def start_ranks(
        self, size: int, script: Path, *arguments: str, cwd: Path, env: Mapping[str, str]
    ) -> list[WarmProcess]:
        """The ranks of one job that nobody watches, with the environment that torchrun gives them."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [
            self.start(
                script, *arguments, cwd=cwd, env={**env, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            )
            for rank in range(size)
        ]

    def start_piped(self, script: Path, *arguments: str, cwd: Path, env: Mapping[str, str]) -> PipedProcess:
        """`python SCRIPT ARGUMENTS`; what it prints can be read while it runs."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        said = {"argv": [str(script), *arguments], "cwd": str(cwd), "env": dict(env), "rank": False}
        pid, status = self._fork(said, its_out, its_err)
        return PipedProcess(said["argv"], pid, status, out, err)

    def _fork(self, said: Request, out: int, err: int) -> tuple[int, int]:
        """Its pid, and where its exit code can be read; `out` and `err` are closed here."""
        if self._socket is None:
            self._start_server()
        assert self._socket is not None
        status, told = os.pipe()
        socket.send_fds(self._socket, [json.dumps(said).encode()], [told, out, err])
        for each in (told, out, err):
            os.close(each)
        return int(self._socket.recv(64)), status

    def _start_server(self) -> None:
        # One message is one request, however long.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *self._preload],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def close(self) -> None:
        if self._socket is not None and self._server is not None:
            self._socket.close()
            self._server.wait()


def serve(requests: socket.socket) -> Request:
    """Forks one process for each request; returns in that process, with the request."""
    told: dict[int, int] = {}

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                os.write(told[ended[0]], str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(told.pop(ended[0]))

    signal.signal(signal.SIGCHLD, reap)
    while True:
        said, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not said:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until its descriptor is noted
        pid = os.fork()
        if pid == 0:
            requests.close()
            for each in told.values():
                os.close(each)
            for given, own in zip(descriptors[1:], (1, 2), strict=True):
                os.dup2(given, own)
        for each in descriptors[1:] if pid else descriptors:
            os.close(each)
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            return dict(json.loads(said))
        told[pid] = descriptors[0]
        requests.send(str(pid).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in told:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def become(request: Request) -> tuple[Any, dict[str, Any]]:
    """This process as Python would start it; what to run, and its globals."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.orig_argv = [sys.executable, *sys.argv]
    script = Path(sys.argv[0]).absolute()
    sys.path[0] = str(script.parent)
    open_streams_anew()
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    if request["rank"]:
        startup = importlib.import_module("nsadiag.worker.startup")
        startup.attach_to_warm_process(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return compile(script.read_bytes(), str(script), "exec"), vars(main)


def open_streams_anew() -> None:
    """stdout and stderr of what is open now: a stream knows for good if what it was made of could be sought in."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        kind = getattr(sys, name)
        stream = os.fdopen(descriptor, "w", encoding=kind.encoding, errors=kind.errors, closefd=False)
        stream.mode = kind.mode
        stream.reconfigure(line_buffering=name == "stderr" or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).resolve().parents[3]))
    gc.disable()  # which takes a fifth of torch's import, and finds that all of it lives on
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # what the collector does not touch, those forked share
    code, names = become(serve(socket.socket(fileno=int(sys.argv[1]))))
    exec(code, names)  # and ends as Python does: threads are joined and exit handlers run
