"""Writes down an exception that ends a thread or the process, with its frames, before anything else runs."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic_ns, time_ns
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nsadiag.evidence.layout import append_json_line, read_own_json, write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.place import user_place
from nsadiag.worker.replacement import Patches, cut_our_frames, is_ours

if TYPE_CHECKING:
    from nsadiag.worker.recorder import Recorder

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


_patches = Patches()
_hook: Any = None  # ours, where it stands for sys.excepthook
_last = 0  # the address of the main thread's exception that was recorded last: to keep it would keep its frames alive


def install(recorder: Recorder) -> None:
    """Notes what ends a thread or the process, by the functions through which it goes."""
    global _hook

    def on_exception(_kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record(recorder, error, trace, thread=MAIN)
        cut_our_frames(error)

    def on_thread_exception(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            record(recorder, args.exc_value, args.exc_traceback, thread=getattr(args.thread, "name", "?"))
            cut_our_frames(args.exc_value)

    # Programs ask whether the hook is still Python's own.
    _hook = _patches.note(sys, "excepthook", harmless(on_exception), (sys, "__excepthook__"))
    _patches.note(threading, "excepthook", harmless(on_thread_exception), (threading, "__excepthook__"))
    for owner, name in ((sys, "exit"), (os, "_exit")):
        _patches.note(owner, name, harmless(_noting_leave(recorder, name)))
    # Each with the position of the signal; None where it is always the same.
    for sender, name, position in (
        (os, "kill", 1), (os, "killpg", 1), (os, "abort", None), (signal, "raise_signal", 0),
        (signal, "pthread_kill", 1),
    ):  # fmt: skip
        _patches.note(sender, name, harmless(_noting_signal(recorder, name, position)))


def uninstall() -> None:
    """Puts back what `install` replaced."""
    _patches.undo()


def harmless(observe: Callable[..., Any]) -> Callable[..., None]:
    """The same, and nothing that goes wrong in it comes out."""

    def before(*args: Any, **kwargs: Any) -> None:
        with tolerated(Exception):
            observe(*args, **kwargs)

    return before


def record_last(recorder: Recorder) -> None:
    """At the end of the process: the exception that ended it, where a hook of the user's took it from ours."""
    error = getattr(sys, "last_value", None)
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    # A console, and whoever runs tests, keeps there what it has caught: in a frame that was called.
    if error is None or trace is None or id(error) == _last or sys.excepthook is _hook:
        return
    if trace.tb_frame.f_back is None:
        record(recorder, error, trace, thread=MAIN)


def _noting_leave(recorder: Recorder, name: str) -> Callable[..., None]:
    """Writes leaving.json with the user line that ends the process on purpose; a forked child is not the rank."""
    rank_pid = os.getpid()

    def note(*args: Any, **kwargs: Any) -> None:
        place = user_place()
        if not place or os.getpid() != rank_pid:
            return
        given = (*args, *kwargs.values())
        left, path = _leaving(name, given, place), recorder.directory.leaving
        if (place.startswith(BOOTSTRAP) or _caller().endswith(OF_MULTIPROCESSING)) and isinstance(
            given[0], int
        ):
            # How multiprocessing ends each process that it has started: the user's own line came before.
            left = {**(read_own_json(path) or left), "ended_with": given[0]}
        write_json(path, left)

    return note


def _caller() -> str:
    """The file of the innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _leaving(name: str, args: tuple[Any, ...], place: str) -> dict[str, Any]:
    error = sys.exc_info()[1]
    handling = describe(error, error.__traceback__, "") if isinstance(error, Exception) else None
    return {"call": name, "arguments": repr(args), "place": place, "handling": handling}


def _noting_signal(recorder: Recorder, name: str, position: int | None) -> Callable[..., None]:
    """Writes signals.jsonl: a signal that a rank sends, with the line, before it may be its own end."""
    sent = 0

    def note(*args: Any) -> None:
        nonlocal sent
        number = signal.SIGABRT if position is None else args[position] if len(args) > position else PROBE
        if number != PROBE and sent < MAX_SIGNALS and not recorder.silenced:
            sent += 1
            target = args[0] if position == 1 and name != "pthread_kill" else os.getpid()
            row = {"call": name, "to": target, "signal": int(number), "place": user_place()}
            append_json_line(recorder.directory.signals, {**row, "t_mono_ns": monotonic_ns()})

    return note


def record(recorder: Recorder, error: BaseException, trace: TracebackType | None, *, thread: str) -> None:
    """Writes exception.json once for the main thread; one that ended another thread gives way to it."""
    global _last
    if recorder.silenced or isinstance(error, SystemExit):
        return
    main, path = thread == MAIN, recorder.directory.exception
    _last = id(error) if main else _last
    try:
        recorder.emit(Kind.EXCEPTION, Phase.POINT, recorder.names(type(error).__name__))
        described = describe(error, trace, thread)
        if main or not path.exists():
            write_json(path, described)
        if not main:
            more = {"how": "thread", "during": thread, "step": recorder.box.step, "place": ""}
            append_json_line(recorder.directory.raised, {**described, **more})
    except Exception as failure:
        pass_on(failure)
        recorder.gap(f"exception not recorded: {failure!r}")


def describe(
    error: BaseException, trace: TracebackType | None, thread: str, say: Callable[[BaseException], str] = str
) -> dict[str, Any]:
    """The exception as plain values, its message by `say`; frames outermost first."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": say(error)[:MAX_MESSAGE],
        "thread": thread,
        "t_mono_ns": monotonic_ns(),
        "t_wall_ns": time_ns(),
        "frames": _frames(trace),
        "cause": _cause(error, say),
        "hidden": _hidden(error, say),
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


def _hidden(error: BaseException, say: Callable[[BaseException], str]) -> dict[str, Any] | None:
    """The exception that was being handled when it was raised `from None`: not to be shown, but it says what came of a peer."""
    earlier = error.__context__
    if earlier is None or error.__cause__ is not None or not error.__suppress_context__:
        return None
    return {
        "type": type(earlier).__name__,
        "message": say(earlier)[:MAX_MESSAGE],
        "frames": _frames(earlier.__traceback__),
    }


def _cause(
    error: BaseException, say: Callable[[BaseException], str], depth: int = 0
) -> dict[str, Any] | None:
    """The exception that it was raised from (`meant`), or while handling, if any; and what that was raised from."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is None or depth >= MAX_CHAIN:
        return None
    return {
        "type": type(earlier).__name__,
        "message": say(earlier)[:MAX_MESSAGE],
        "meant": error.__cause__ is not None,
        "frames": _frames(earlier.__traceback__),
        "cause": _cause(earlier, say, depth + 1),
    }
