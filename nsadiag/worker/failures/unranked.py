"""Exceptions that end a process of the job before anybody knows which rank it is (unnamed.jsonl)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from nsadiag.evidence.layout import RunDir, append_json_line
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.worker.failures import crash
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.replacement import Patches, cut_our_frames, faithful, leave_no_frame

_patches = Patches()
# How parents say that a child has failed.
OF_A_CHILD = ("ProcessRaisedException", "ProcessExitedException", "ChildFailedError", "CalledProcessError")


def listen(is_unnamed: Callable[[], bool]) -> None:
    """Around the ways in which an exception ends a process: its main thread's, multiprocessing's and torch's spawn's."""

    def note(error: BaseException | None, trace: TracebackType | None) -> None:
        with tolerated(Exception):
            if isinstance(error, Exception) and is_unnamed() and type(error).__name__ not in OF_A_CHILD:
                _write(error, trace)

    def on_exception(_kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note(error, trace)
        cut_our_frames(error)

    def leaving(*args: Any) -> None:
        # torch.multiprocessing.spawn: it has written the traceback into a file for the parent.
        error = sys.exc_info()[1]
        if args and args[0] not in (0, None):
            note(error, error.__traceback__ if error else None)

    def around_run(run: Callable[[BaseProcess], None]) -> Callable[[BaseProcess], None]:
        def running(self: BaseProcess) -> None:
            try:
                run(self)
            except BaseException as error:
                note(error, error.__traceback__)
                leave_no_frame(error)
                raise

        return faithful(running, run)  # type: ignore[no-any-return]

    _patches.note(sys, "excepthook", crash.harmless(on_exception), (sys, "__excepthook__"))
    _patches.note(sys, "exit", crash.harmless(leaving))
    _patches.place(BaseProcess, "run", around_run)


def _write(error: Exception, trace: TracebackType | None) -> None:
    about: dict[str, Any] = {"pid": os.getpid(), "argv": mask_command(getattr(sys, "orig_argv", sys.argv))}
    about["spawned_as"] = _number(trace)
    run = RunDir(path=Path(os.environ["NSADIAG_RUN_DIR"]))
    append_json_line(run.unnamed, {**about, **crash.describe(error, trace, crash.MAIN)})


def _number(trace: TracebackType | None) -> int | None:
    """The number of a process of torch.multiprocessing.spawn, as that counts them; None of any other."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "_wrap" and code.co_filename.endswith("torch/multiprocessing/spawn.py"):
            number = trace.tb_frame.f_locals.get("i")
            return number if isinstance(number, int) else None
        trace = trace.tb_next
    return None
