"""A process that has imported torch, from which ranks of a rehearsal are forked: `python zygote.py DESCRIPTOR`.

Each request on the descriptor starts one rank, which becomes the user's command as if Python had been started with it. The
ranks of one zygote share its hash salt, as nothing can change that after Python's start.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from nsadiag.worker import session
from nsadiag.worker.interruptions import tolerated

PR_SET_PDEATHSIG = 1
SHORT_S = 0.001
# Parts of torch that a script imports, and packages of which each imports some: a rank would take a second over every one.
PART = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(torch\.distributed\.[\w.]+)", re.MULTILINE)
PACKAGE = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+(accelerate|lightning|pytorch_lightning|transformers)\b", re.MULTILINE
)
SHARDED = ("torch.distributed.fsdp", "torch.distributed.tensor")
# Fake tensors, with which DTensor learns of shapes, ask for its settings.
COMPILER = "torch._dynamo.config"
MOST_SOURCE = 1 << 20  # bytes of a script
NOT_APART = 97  # the exit code of a process that is not kept apart from those before it
# Asking CUDA whether it is there would initialise it, and a process forked after that cannot use it.
ASK_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(descriptor: int) -> None:
    """Forks a rank for each request, and runs the script in it; ends with the last request."""
    launcher = os.getppid()
    die_with(launcher)
    with socket.socket(fileno=descriptor) as answers, answers.makefile("r") as requests:
        request = json.loads(requests.readline())
        sys.path[0] = request["path"]
        import_torch(named_parts(request["argv"][0]))
        # What is there never becomes garbage: without this the first collection in each rank walks, and copies, all of torch.
        gc.freeze()
        while request and not _is_rank(launcher):
            request = json.loads(requests.readline() or "{}")
        if not request:
            os._exit(0)
        said = {"rank": request["rank"], "pid": os.getpid(), "beside": request.get("beside", -1)}
        answers.sendall((json.dumps(said) + "\n").encode())
    _become(request)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _is_rank(launcher: int) -> bool:
    """Whether this is a new rank: a child's child, which the launcher inherits, as all ranks have one parent under torchrun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has threads of its own, which do nothing yet
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return False
        if os.fork():
            os._exit(0)
    while os.getppid() != launcher:
        if not _is_alive(launcher):
            os._exit(1)
        time.sleep(SHORT_S)
    die_with(launcher)
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def named_parts(script: str) -> list[str]:
    """Modules of torch that ranks are about to import, by the text of their script; none that reads which rank it is on."""
    with tolerated(OSError), open(script, "rb") as file:  # noqa: PTH123 - pathlib costs 10 ms
        text = file.read(MOST_SOURCE)
        parts = {name.decode() for name in PART.findall(text)}
        packages = set(PACKAGE.findall(text))
        if packages - {b"accelerate"}:
            parts.add(SHARDED[0])
        if any(part.startswith(SHARDED) for part in parts):
            parts.add(COMPILER)
        elif packages:
            parts.add(SHARDED[1])
        return sorted(parts, reverse=True)  # the compiler last: it finds the others there
    return []


def import_torch(parts: Sequence[str] = ()) -> None:
    """Import whatever all ranks need; a script without torch fails by itself, or does without."""
    is_ours = ASK_DRIVER not in os.environ
    os.environ.setdefault(ASK_DRIVER, "1")
    gc.disable()  # an import makes hardly any garbage, and collecting takes a tenth of it
    with tolerated(ImportError):
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401
    for part in parts:
        # Of what it lacks each rank says so by itself, at the line that asks for it.
        with tolerated(Exception):
            importlib.import_module(part)
    gc.enable()
    if is_ours:
        del os.environ[ASK_DRIVER]


def _stand_apart(about: dict[str, Any]) -> None:
    """In namespaces of its own, as what its peers write or listen on is not this process's; with all of the memory that they shared."""
    from nsadiag.evidence.rehearsal.namespaces import Apart, isolate
    from nsadiag.worker.rehearsal import limits

    apart = Apart(**about)
    isolation = isolate(apart)
    if not isolation.files_apart or (apart.network and not isolation.network_apart):
        os._exit(NOT_APART)
    limits.share_memory()


def _become(request: dict[str, Any]) -> None:
    """Do as Python does when it is started with this command line; the end is the interpreter's."""
    os.environ.update(request["env"])
    if "apart" in request:
        _stand_apart(request["apart"])
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
