"""Waits in an event loop, by its tasks, since the stack of the loop's thread does not show them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CaptureEvidence
from nsadiag.analysis.relations.blocked import BlockedRank, user_threads
from nsadiag.analysis.rules.drafts import at_line
from nsadiag.evidence.documents.captures import Task
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.user_code import is_user

# Functions of asyncio in which a task waits: for other tasks of the process, and for external events.
INSIDE = re.compile(r"/asyncio/(locks|queues)\.py$")
OUTSIDE = re.compile(
    r"/asyncio/(streams|subprocess|sslproto|selector_events|base_subprocess|unix_events)\.py$"
)
LIBRARIES = re.compile(
    r"/(aiohttp|httpx|httpcore|websockets|grpc|asyncpg|redis|aiobotocore|aioboto3|asyncssh)/"
)
SLEEPS = re.compile(r"/asyncio/tasks\.py$")

WAITS = re.compile(r"/(selectors|asyncio/\w+)\.py$")

Kind = Literal["inside", "outside", "sleep", "unknown"]


@dataclass(frozen=True, kw_only=True)
class LoopWait:
    """The task that blocks the rank, and what is known about the reason."""

    name: str
    kind: Kind
    place: Place
    says: str  # what it waits for
    why: str
    strength: Strength
    source: str


def blocking_task(blocked: BlockedRank) -> LoopWait | None:
    """The task that blocks the rank: of its main thread's event loop, or of the only other thread's that runs one.

    None if no tasks are known, if one of them will continue by itself, or if another thread works: its stack shows more.
    """
    tasks, loops = blocked.capture.tasks, loops_beside(blocked.capture)
    in_main = any(row.main and row.thread is None for row in tasks)
    rows = [row for row in tasks if (row.thread is None) == in_main]
    if any(in_main or thread not in loops for thread, _ in user_threads(blocked.capture)):
        return None
    if not in_main and (len(loops) != 1 or len({row.thread for row in rows}) != 1):
        return None
    found = _told(rows, f"{blocked.capture.source}/tasks.json")
    if found is None or in_main:
        return found
    # What the main thread awaits of another thread's loop is not known.
    return replace(found, strength=found.strength.at_most(Strength.LIKELY))


def _told(rows: list[Task], source: str) -> LoopWait | None:
    """The wait that blocks the task for which the loop was started; of a loop that runs indefinitely, that of any task."""
    waiting = {row.name: row for row in rows if row.failed is None}
    begun = [row for row in waiting.values() if row.main] or list(waiting.values())
    ends = [end for row in begun for end in _ends(row, waiting, set())]
    others = [row for row in waiting.values() if row not in ends]
    if not ends or any(_kind(row) in ("sleep", "unknown") for row in [*ends, *others]):
        return None
    world = [row for row in ends if _kind(row) == "outside"]
    if world:
        return _wait(world[0], "", Strength.STRONG, source)
    beside = [row for row in others if _kind(row) == "outside"]
    if beside:
        # It may be the one that would wake the others.
        return _wait(beside[0], "", Strength.WEAK, source)
    return _wait(ends[0], _why(rows, others), Strength.STRONG, source)


def loops_beside(capture: CaptureEvidence) -> list[PythonThread]:
    """Other threads that wait in an idle event loop."""
    return [
        thread
        for thread in capture.other_threads
        if thread.frames
        and WAITS.search(thread.frames[0].filename)
        and any("/asyncio/" in frame.filename for frame in thread.frames)
    ]


def _ends(row: Task, waiting: dict[str, Task], seen: set[str]) -> list[Task]:
    """The tasks at the ends of the chains of awaits; a cycle of awaits ends in its first task."""
    seen.add(row.name)
    following = [waiting[name] for name in row.of if name in waiting and name not in seen]
    found = [end for each in following for end in _ends(each, waiting, seen)]
    return found or [row]


def _kind(row: Task) -> Kind:
    """The kind of wait, by the functions below the innermost user line."""
    inner = [frame.filename for frame in _inner(row)]
    if any(LIBRARIES.search(file) or OUTSIDE.search(file) for file in inner):
        return "outside"
    if any(INSIDE.search(file) for file in inner):
        return "inside"
    if inner and SLEEPS.search(inner[0]):
        # sleep(), wait_for() and wait() end by themselves, or with the tasks that they wait for.
        return "inside" if row.of else "sleep"
    # A cycle of tasks that await each other, or a future, which any code may set.
    return "inside" if row.of else "unknown"


def _inner(row: Task) -> tuple[StackFrame, ...]:
    return row.frames[: next((n for n, f in enumerate(row.frames) if is_user(f.filename)), 0)]


def _place(row: Task) -> Place | None:
    """The task's innermost user line."""
    user = next((f for f in row.frames if is_user(f.filename)), None)
    return locations.place(user.filename, user.line, user.name) if user else None


def _wait(row: Task, why: str, strength: Strength, source: str) -> LoopWait | None:
    place, inner = _place(row), _inner(row)
    called = inner[-1].name if inner else "another task"
    if place is None:
        return None
    return LoopWait(
        name=row.name,
        kind=_kind(row),
        place=place,
        says=f"{called}, in task {row.name}",
        why=why,
        strength=strength,
        source=source,
    )


def _why(rows: list[Task], others: list[Task]) -> str:
    """The fate of the tasks that should have woken it."""
    failed = [(row, row.failed) for row in rows if row.failed]
    if failed:
        (row, error), more = failed[0], len(failed) - 1
        at = at_line(_place(row))
        also = f", and {more} more" if more else ""
        return f"task {row.name} ended by {error.type}{at}{also}, and the waiting tasks do not check for it"
    if others:
        return f"its {len(others)} other task{'s' if len(others) > 1 else ''} wait for each other as well"
    return "no other task in the loop can wake it"
