"""The waits of an event loop's tasks, reported on request: the thread's stack shows only that the loop waits.

Asked over torch's worker server, and only while nobody holds the GIL: the answer takes it for a moment.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

MOST_TASKS = 256
MOST_FRAMES = 32
OF_ASYNCIO = ("/asyncio/", "/uvloop/")


def report() -> list[dict[str, Any]]:
    """A row for each task that waits, and for each that has failed, of the main thread's loop; else of those of other threads.

    The latter name the `thread`. Empty without a loop.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return []
    stacks = sys._current_frames()
    loop, main = _running(asyncio, stacks.get(threading.main_thread().ident or 0))
    if loop is not None:
        return _rows(asyncio, loop, main)
    found = []
    for thread in threading.enumerate():
        loop, main = _running(asyncio, stacks.get(thread.ident or 0))
        if loop is not None:
            found += [{**row, "thread": thread.name} for row in _rows(asyncio, loop, main)]
    return found


def _rows(asyncio: Any, loop: Any, main: Any) -> list[dict[str, Any]]:
    waiting = list(asyncio.all_tasks(loop))[:MOST_TASKS]
    tasks: Any = sys.modules["asyncio.tasks"]
    # Those that are over are in no public list; the name of this one is another since Python 3.12.
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", ())
    over = [t for t in list(known) if t.done() and not t.cancelled() and t.get_loop() is loop]
    failed = [t for t in over if getattr(t, "_exception", None)]
    return [_waiting(task, task is main) for task in waiting] + [_failed(t) for t in failed[:MOST_TASKS]]


def _running(asyncio: Any, frame: FrameType | None) -> tuple[Any, Any]:
    """The loop in which a thread with this frame stands, and the task or future that it runs for."""
    loop = main = None
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in OF_ASYNCIO):
            own = frame.f_locals.get("self")
            found = own if isinstance(own, asyncio.AbstractEventLoop) else getattr(own, "_loop", None)
            loop = found if loop is None and isinstance(found, asyncio.AbstractEventLoop) else loop
            goal = frame.f_locals.get("task", frame.f_locals.get("future"))
            main = goal if main is None and isinstance(goal, asyncio.Task) else main
        frame = frame.f_back
    return loop, main


def _waiting(task: Any, main: bool) -> dict[str, Any]:
    future = getattr(task, "_fut_waiter", None)
    # A gathering future has children; what waits for a task holds the task itself.
    goals = getattr(future, "_children", None) or [future]
    return {
        "name": task.get_name(),
        "main": main,
        "waits_for": type(future).__name__ if future is not None else None,
        "of": [g.get_name() for g in goals if hasattr(g, "get_name") and not g.done()],
        "frames": _frames(task.get_coro()),
    }


def _failed(task: Any) -> dict[str, Any]:
    # Not task.exception(): asyncio would then take it for having been asked for, and say nothing of it at the end.
    error = task._exception
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(_place(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    said = {"type": type(error).__name__, "message": str(error)[:200]}
    return {"name": task.get_name(), "failed": said, "frames": frames[: -MOST_FRAMES - 1 : -1]}


def _frames(coroutine: Any) -> list[dict[str, Any]]:
    """Frames of all coroutines that await one another, innermost first."""
    found: list[dict[str, Any]] = []
    while coroutine is not None and len(found) < MOST_FRAMES:
        frame = next(
            (f for kind in ("cr", "gi", "ag") if (f := getattr(coroutine, f"{kind}_frame", None))), None
        )
        if frame is None:
            break
        found.append(_place(frame, frame.f_lineno))
        names = ("cr_await", "gi_yieldfrom", "ag_await")
        coroutine = next((c for name in names if (c := getattr(coroutine, name, None)) is not None), None)
    return found[::-1]


def _place(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    return {"filename": code.co_filename, "line": line, "name": name}
