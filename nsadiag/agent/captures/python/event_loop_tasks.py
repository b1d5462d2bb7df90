"""The waits of an event loop's tasks, reported by a rank whose main thread is in such a loop, or waits beside one."""

from __future__ import annotations

from typing import Any

from nsadiag.agent.captures.target import NotApplicable, Target
from nsadiag.evidence.blocking import Waker, wakers
from nsadiag.evidence.layout import TASKS_HANDLER, write_json
from nsadiag.evidence.stacks import stacks_in

OF_LOOPS = ("/asyncio/", "/uvloop/")


def tasks(target: Target) -> dict[str, Any]:
    """tasks.json: by task of the main thread's loop (or of those beside it) its stack, and what it waits for; failed tasks."""
    threads = stacks_in(target.directory)
    if not _waits_for_a_loop(threads):
        raise NotApplicable("the main thread stands in no event loop, and waits for none of another thread")
    # It would not answer before that thread lets go, and a thread of the server would be lost to the question.
    if any(thread.get("owns_gil") for thread in threads):
        raise NotApplicable("a thread of the rank holds the interpreter lock")
    rows = target.server.ask_json(TASKS_HANDLER)
    write_json(target.directory.tasks, rows)
    return {"tasks": len(rows)}


def _waits_for_a_loop(threads: list[dict[str, Any]]) -> bool:
    main: dict[str, Any] = next((t for t in threads if t.get("thread_name") == "MainThread"), {"frames": []})
    if _in_loop(main):
        return True
    inner = str(main["frames"][0]["filename"]) if main["frames"] else ""
    return bool(wakers(inner) & Waker.THREAD) and any(map(_in_loop, threads))


def _in_loop(thread: dict[str, Any]) -> bool:
    return any(part in str(f["filename"]) for f in thread["frames"] for part in OF_LOOPS)
