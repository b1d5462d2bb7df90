"""Writes down an exception that ends a thread or the process, with its frames, before anything else runs."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import linecache
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.evidence.layout import append_json_line, open_private, read_json, write_json
from nsadiag.worker.place import user_place

if TYPE_CHECKING:
    from nsadiag.worker.runtime import Runtime

MAX_MESSAGE = 20_000
MAX_CHAIN = 8
MAIN = "MainThread"
MAX_SIGNALS = 100
OF_MULTIPROCESSING = (
    "/multiprocessing/popen_fork.py",
    "/multiprocessing/forkserver.py",
    "/torch/multiprocessing/spawn.py",
)
BOOTSTRAP = "<string>:1:"  # python -c "from multiprocessing.spawn import spawn_main; spawn_main(...)"
PROBE = 0  # the signal that only asks whether a process lives


def install(runtime: Runtime) -> None:
    """Chains in front of the hooks that are there; faulthandler covers deaths in C code."""
    if not faulthandler.is_enabled():
        # The file must outlive this function: faulthandler keeps the descriptor, not the object.
        faults = open_private(runtime.directory.faults)
        runtime.keep.append(faults)
        faulthandler.enable(file=faults)
    previous, previous_thread = sys.excepthook, threading.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record(runtime, error, trace, thread=MAIN)
        previous(kind, error, trace)

    def on_thread_exception(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            record(runtime, args.exc_value, args.exc_traceback, thread=getattr(args.thread, "name", "?"))
        previous_thread(args)

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    _note_leaving(runtime, sys, "exit")
    _note_leaving(runtime, os, "_exit")
    _note_signals(runtime)


def _note_leaving(runtime: Runtime, owner: Any, name: str) -> None:
    """Writes leaving.json with the user line that ends the process on purpose; a forked child is not the rank."""
    leave, rank_pid = getattr(owner, name), os.getpid()

    @functools.wraps(leave)
    def noted(*args: Any) -> Any:
        place = user_place()
        if place and os.getpid() == rank_pid:
            with contextlib.suppress(Exception):
                left, path = _leaving(name, args, place), runtime.directory.leaving
                caller = sys._getframe(1).f_code.co_filename
                of_theirs = place.startswith(BOOTSTRAP) or caller.endswith(OF_MULTIPROCESSING)
                if of_theirs and args and isinstance(args[0], int):
                    # How multiprocessing ends each process that it has started: the user's own line came before.
                    left = {**(read_json(path) or left), "ended_with": args[0]}
                write_json(path, left)
        return leave(*args)

    setattr(owner, name, noted)


def _leaving(name: str, args: tuple[Any, ...], place: str) -> dict[str, Any]:
    error = sys.exc_info()[1]
    handling = describe(error, error.__traceback__, "") if isinstance(error, Exception) else None
    return {"call": name, "arguments": repr(args), "place": place, "handling": handling}


def _note_signals(runtime: Runtime) -> None:
    """Writes signals.jsonl: a signal that a rank sends, with the line, before it may be its own end."""
    # Each with the position of the signal; None where it is always the same.
    for owner, name, position in (
        (os, "kill", 1), (os, "killpg", 1), (os, "abort", None), (signal, "raise_signal", 0),
        (signal, "pthread_kill", 1),
    ):  # fmt: skip
        setattr(owner, name, _noting_signal(runtime, getattr(owner, name), name, position))


def _noting_signal(
    runtime: Runtime, send: Callable[..., Any], name: str, position: int | None
) -> Callable[..., Any]:
    sent = 0

    @functools.wraps(send)
    def noted(*args: Any) -> Any:
        nonlocal sent
        number = signal.SIGABRT if position is None else args[position] if len(args) > position else PROBE
        if number != PROBE and sent < MAX_SIGNALS and not runtime.silenced:
            sent += 1
            with contextlib.suppress(Exception):
                target = args[0] if position == 1 and name != "pthread_kill" else os.getpid()
                row = {"call": name, "to": target, "signal": int(number), "place": user_place()}
                append_json_line(runtime.directory.signals, {**row, "t_mono_ns": time.monotonic_ns()})
        return send(*args)

    return noted


def record(runtime: Runtime, error: BaseException, trace: TracebackType | None, *, thread: str) -> None:
    """Writes exception.json once for the main thread; one that ended another thread gives way to it."""
    if runtime.silenced or isinstance(error, SystemExit):
        return
    main, path = thread == MAIN, runtime.directory.exception
    try:
        runtime.emit(Kind.EXCEPTION, Phase.POINT, runtime.names(type(error).__name__))
        described = describe(error, trace, thread)
        if main or not path.exists():
            write_json(path, described)
        if not main:
            more = {"how": "thread", "during": thread, "step": runtime.box.step, "place": ""}
            append_json_line(runtime.directory.raised, {**described, **more})
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
        "frames": _frames(trace),
        "cause": _cause(error),
        "hidden": _hidden(error),
    }


def _frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    return [
        {
            "file": f.filename,
            "line": f.lineno,
            "function": f.name,
            "code": linecache.getline(f.filename, f.lineno or 0).strip(),
        }
        for f in traceback.extract_tb(trace)
    ]


def _hidden(error: BaseException) -> dict[str, Any] | None:
    """What was being handled when it was raised `from None`: not to be shown, but it says what came of a peer."""
    earlier = error.__context__
    if earlier is None or error.__cause__ is not None or not error.__suppress_context__:
        return None
    return {
        "type": type(earlier).__name__,
        "message": str(earlier)[:MAX_MESSAGE],
        "frames": _frames(earlier.__traceback__),
    }


def _cause(error: BaseException, depth: int = 0) -> dict[str, Any] | None:
    """What the exception was raised from (`meant`), or while handling, if anything; and what that was raised from."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is None or depth >= MAX_CHAIN:
        return None
    return {
        "type": type(earlier).__name__,
        "message": str(earlier)[:MAX_MESSAGE],
        "meant": error.__cause__ is not None,
        "frames": _frames(earlier.__traceback__),
        "cause": _cause(earlier, depth + 1),
    }
