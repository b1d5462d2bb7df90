"""A rank forked from the warm launcher: it becomes the user's command, as if freshly started."""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import multiprocessing.util
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from nsadiag.evidence.layout import RunDir
from nsadiag.worker import output, session, startup
from nsadiag.worker.failures import crash

# The script's globals: freed at return, they would run destructors (a process group's joins threads that
# may want the GIL) which at the end of an ordinary process do not run before its exit handlers.
_globals: list[dict[str, Any]] = []


def run_rank(request: dict[str, Any]) -> None:
    """Runs the request's command as __main__, and leaves by os._exit, as soon as a process of its own would."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.orig_argv = [sys.executable, *request["argv"]]
    # The fork server has handed down its own, with which a loader's workers would have to be pickled.
    multiprocessing.set_start_method(None, force=True)
    output.redirect_to_files(RunDir(path=Path(request["env"]["NSADIAG_RUN_DIR"])).rank(rank))
    startup.attach_to_warm_process(rank, world_size)
    code = _execute(request["argv"])
    _run_exit_handlers()
    if code or _tell_launcher():
        os._exit(code)


def _tell_launcher() -> bool:
    """That this rank ended well; False where it cannot be told, and the rank has to wait for its peers.

    torch's own wrapper would keep the process, with its sockets, until all ranks are done: where peers of a rank that
    has left get an error under torchrun, they would wait for ever here.
    """
    frame = inspect.currentframe()
    while frame is not None:
        answers = frame.f_locals.get("ret_val_")
        if frame.f_code.co_name == "_wrap" and answers is not None:
            answers.put(None)
            return True
        frame = frame.f_back
    return False


def _execute(argv: list[str]) -> int:
    """The exit code that `python ARGV...` would have."""
    try:
        _run_as_main(argv)
    except SystemExit as leaving:
        return _exit_code(leaving.code)
    except BaseException as error:
        recorded = session.current()
        if recorded is not None:
            crash.record(recorded, error, error.__traceback__, thread="MainThread")
        traceback.print_exc()
        return 1
    return 0


def _run_as_main(argv: list[str]) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.path.insert(0, str(Path.cwd()))
        _globals.append(runpy.run_module(argv[1], run_name="__main__", alter_sys=True))
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        _globals.append(runpy.run_path(argv[0], run_name="__main__"))


def _exit_code(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _run_exit_handlers() -> None:
    # A process of multiprocessing leaves without running them; a script started by itself runs them.
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
    atexit._run_exitfuncs()
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
