"""A process that has imported torch, from which ranks of a rehearsal are forked: `python zygote.py DESCRIPTOR`.

Each request on the descriptor starts one rank, which becomes the user's command as if Python had been started with it. The
ranks of one zygote share its hash salt, as nothing can change that after Python's start.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
import warnings
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from nsadiag.worker import session
from nsadiag.worker.interruptions import tolerated

PR_SET_PDEATHSIG = 1
READABLE_S = (
    0.15  # how long the last of the ranks stays a zombie: longer than the watch takes between two looks
)
# Asking CUDA whether it is there would initialise it, and a process forked after that cannot use it.
ASK_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(descriptor: int) -> None:
    """Serves until the launcher asks for no more ranks. Runs the script in the ranks; ends the zygote's own process."""
    die_with(os.getppid())
    with socket.socket(fileno=descriptor) as launcher, launcher.makefile("r") as requests:
        request = json.loads(requests.readline())
        sys.path[0] = request["path"]
        import_torch()
        pids = []
        while request:
            pid = _fork()
            if pid == 0:
                break
            pids.append(pid)
            _say(launcher, rank=request["rank"], pid=pid)
            request = json.loads(requests.readline() or "{}")
        else:
            _report_ends(launcher, pids)
    _become(request)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def import_torch() -> None:
    """Import whatever all ranks need; a script without torch fails by itself, or does without."""
    is_ours = ASK_DRIVER not in os.environ
    os.environ.setdefault(ASK_DRIVER, "1")
    with tolerated(ImportError):
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401
    if is_ours:
        del os.environ[ASK_DRIVER]


def _fork() -> int:
    zygote = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has threads of its own, which do nothing yet
        pid = os.fork()
    if pid == 0:
        die_with(zygote)
    return pid


def _say(launcher: socket.socket, **message: int) -> None:
    launcher.sendall((json.dumps(message) + "\n").encode())


def _report_ends(launcher: socket.socket, pids: list[int]) -> None:
    """Returns never: this process ends behind the last of its ranks.

    They are not reaped before: how a process ended can be read from outside as long as it is a zombie.
    """
    poll = select.poll()
    ranks = {os.pidfd_open(pid): pid for pid in pids}
    for descriptor in ranks:
        poll.register(descriptor, select.POLLIN)
    while ranks:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            ended = os.waitid(os.P_PID, ranks.pop(descriptor), os.WEXITED | os.WNOWAIT)
            if ended is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                _say(launcher, pid=ended.si_pid, code=code)
    time.sleep(READABLE_S)
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    """Do as Python does when it is started with this command line; the end is the interpreter's."""
    os.environ.update(request["env"])
    sys.orig_argv = [sys.executable, *request["options"], *request["argv"]]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    session.open_named_rank()
    module = sys.modules["__main__"] = ModuleType("__main__")
    first, *rest = request["argv"]
    if first == "-m":
        import runpy

        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    file = os.path.abspath(first)  # noqa: PTH100 - as Python does it, links stay
    sys.argv = [first, *rest]
    loader = SourceFileLoader("__main__", file)
    vars(module).update(__file__=file, __loader__=loader, __cached__=None, __builtins__=__builtins__)
    exec(loader.source_to_code(loader.get_data(file), file), vars(module))


if __name__ == "__main__":
    main(int(sys.argv[1]))
