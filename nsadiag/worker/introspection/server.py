"""torch's own C++ worker server on a unix socket: it answers while the GIL is held and Python cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsadiag.evidence.layout import LEAVING, PYTHON_HANDLER, ROUNDS_HANDLER, TASKS_HANDLER, UNGRADED_HANDLER
from nsadiag.evidence.ownership import check_private
from nsadiag.worker.descriptors import opened_high
from nsadiag.worker.failures import traceback_signal
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.introspection import event_loop_tasks, loop_rounds, missing_gradients, python_handlers

if TYPE_CHECKING:
    from nsadiag.worker.recorder import Recorder

SOCKET_DIR = "NSADIAG_SOCKET_DIR"
LAST_ANSWERS_S = 0.005  # for what was asked just before, while the interpreter lock is free
ANNOUNCEMENT = b"Server listening to UNIX "
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}


def socket_path(directory: str, rank: int) -> str:
    """A unix socket's path may have 107 bytes, so it lies in a short directory of its own."""
    return os.path.join(directory, f"{rank}.sock")  # noqa: PTH118


def start(recorder: Recorder) -> None:
    """Raises whatever torch raises, and OSError where the directory is another user's; an older torch without the server leaves a gap."""
    directory = os.environ.get(SOCKET_DIR)
    if not directory:
        return
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        recorder.gap("no worker server in this torch: no evidence while the GIL is held")
        return
    # Of a job that has ended it is removed, and its name is free to others.
    check_private(directory)
    path = socket_path(directory, recorder.rank)
    # Left behind by this rank's predecessor, where the launcher has restarted it.
    with tolerated(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - a plain path is at hand
    with opened_high(), _without_its_announcement(), _signals_left_to_the_job():
        server = _WorkerServer(path, -1)
    # Never destroyed, come what may: its destructor logs three warnings into the job's output, and joins a thread that
    # may wait for the interpreter lock.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    os.chmod(path, 0o600)  # noqa: PTH101 - made by torch, with the user's umask
    python_handlers.offer(PYTHON_HANDLER, dict)  # that it answers says all
    python_handlers.offer(TASKS_HANDLER, event_loop_tasks.report)
    python_handlers.offer(ROUNDS_HANDLER, loop_rounds.of_main_thread)
    python_handlers.offer(UNGRADED_HANDLER, missing_gradients.report)


def leave(recorder: Recorder) -> None:
    """Python is about to end: from here on nothing may be asked that needs it (agent/captures/worker_server.py)."""
    directory = os.environ.get(SOCKET_DIR)
    if not directory:
        return
    path = socket_path(directory, recorder.rank)
    with tolerated(OSError):
        os.rename(path, path.removesuffix(".sock") + LEAVING)  # noqa: PTH104 - a plain path is at hand
        time.sleep(LAST_ANSWERS_S)


@contextlib.contextmanager
def _signals_left_to_the_job() -> Iterator[None]:
    """The server's threads inherit the mask: a signal that the job waits for by `sigwait` must find no thread of ours.

    Faults in a thread's own code cannot be blocked, and ours for stacks is sent to these very threads.
    """
    own = {traceback_signal.NUMBER} if traceback_signal.is_free() else set[int]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS - own)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_its_announcement() -> Iterator[None]:
    """Keeps "Server listening", which C++ logs as a warning, out of the job's output, and nothing that others write meanwhile."""
    saved, meanwhile = os.dup(2), os.memfd_create("nsadiag")
    os.dup2(meanwhile, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        said = os.pread(meanwhile, os.fstat(meanwhile).st_size, 0).splitlines(keepends=True)
        others = b"".join(line for line in said if ANNOUNCEMENT not in line)
        if others:
            os.write(saved, others)
        os.close(saved)
        os.close(meanwhile)
