"""The waits of an event loop's tasks, reported by a rank whose main thread is in such a loop, or waits beside one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsadiag.agent.captures.target import NotApplicable, Target
from nsadiag.evidence.blocking import Waker, wakers
from nsadiag.evidence.documents.python_stacks import StackFrame, Threads, frames_of_main
from nsadiag.evidence.layout import TASKS_HANDLER, write_json
from nsadiag.evidence.stacks import stacks_in

OF_LOOPS = ("/asyncio/", "/uvloop/")


def tasks(target: Target) -> dict[str, Any]:
    """tasks.json: by task of the main thread's loop (or of those beside it) its stack, and what it waits for; failed tasks."""
    threads = stacks_in(target.directory)
    if not _waits_for_a_loop(threads):
        raise NotApplicable("the main thread stands in no event loop, and waits for none of another thread")
    # It would not answer before that thread lets go, and a thread of the server would be lost to the question.
    if any(thread.owns_gil for thread in threads):
        raise NotApplicable("a thread of the rank holds the interpreter lock")
    rows = target.server.ask_json(TASKS_HANDLER)
    write_json(target.directory.tasks, rows)
    return {"tasks": len(rows)}


def _waits_for_a_loop(threads: Threads) -> bool:
    main = frames_of_main(threads)
    if _in_loop(main):
        return True
    inner = main[0].filename if main else ""
    return bool(wakers(inner) & Waker.THREAD) and any(_in_loop(thread.frames) for thread in threads)


def _in_loop(frames: Iterable[StackFrame]) -> bool:
    return any(part in frame.filename for frame in frames for part in OF_LOOPS)
