"""Writes down an exception that ends a thread or the process, with its frames, before anything else runs."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import linecache
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.evidence.layout import open_private, write_json
from nsadiag.worker.place import user_place

if TYPE_CHECKING:
    from nsadiag.worker.runtime import Runtime

MAX_MESSAGE = 20_000


def install(runtime: Runtime) -> None:
    """Chains in front of the hooks that are there; faulthandler covers deaths in C code."""
    if not faulthandler.is_enabled():
        # The file must outlive this function: faulthandler keeps the descriptor, not the object.
        faults = open_private(runtime.directory.faults)
        runtime.keep.append(faults)
        faulthandler.enable(file=faults)
    previous, previous_thread = sys.excepthook, threading.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record(runtime, error, trace, thread="MainThread")
        previous(kind, error, trace)

    def on_thread_exception(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            record(runtime, args.exc_value, args.exc_traceback, thread=getattr(args.thread, "name", "?"))
        previous_thread(args)

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    _note_leaving(runtime, sys, "exit")
    _note_leaving(runtime, os, "_exit")


def _note_leaving(runtime: Runtime, owner: Any, name: str) -> None:
    """Writes leaving.json with the user line that ends the process on purpose; a forked child is not the rank."""
    leave, rank_pid = getattr(owner, name), os.getpid()

    @functools.wraps(leave)
    def noted(*args: Any) -> Any:
        place = user_place()
        if place and os.getpid() == rank_pid:
            with contextlib.suppress(Exception):
                write_json(runtime.directory.leaving, {"call": name, "arguments": repr(args), "place": place})
        return leave(*args)

    setattr(owner, name, noted)


def record(runtime: Runtime, error: BaseException, trace: TracebackType | None, *, thread: str) -> None:
    """Writes exception.json once; the first exception is the one that matters."""
    if runtime.silenced or isinstance(error, SystemExit) or runtime.directory.exception.exists():
        return
    try:
        runtime.emit(Kind.EXCEPTION, Phase.POINT, runtime.names(type(error).__name__))
        write_json(runtime.directory.exception, describe(error, trace, thread))
    except Exception as failure:
        runtime.gap(f"exception not recorded: {failure!r}")


def describe(error: BaseException, trace: TracebackType | None, thread: str) -> dict[str, Any]:
    """The exception as plain values; frames outermost first."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error)[:MAX_MESSAGE],
        "thread": thread,
        "t_mono_ns": time.monotonic_ns(),
        "t_wall_ns": time.time_ns(),
        "frames": [
            {
                "file": f.filename,
                "line": f.lineno,
                "function": f.name,
                "code": linecache.getline(f.filename, f.lineno or 0).strip(),
            }
            for f in traceback.extract_tb(trace)
        ],
        "cause": _cause(error),
    }


def _cause(error: BaseException) -> dict[str, str] | None:
    """What the exception was raised from or while handling, if anything."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {"type": type(earlier).__name__, "message": str(earlier)[:MAX_MESSAGE]} if earlier else None
