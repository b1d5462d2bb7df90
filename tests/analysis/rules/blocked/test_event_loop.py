"""A rank in an event loop: what its tasks say of themselves, and what follows from it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.processes.looks import thread

from nsadiag.analysis.records import CaptureEvidence
from nsadiag.analysis.rules.blocked.event_loop import LoopWait, blocking_task
from nsadiag.evidence.documents.captures import Failed, Task
from nsadiag.evidence.documents.kernel import NO_PROCESS
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.worker.introspection.event_loop_tasks import report

ASYNCIO = "/usr/lib/python3.11/asyncio/"


def told_meanwhile(coroutine: Any) -> dict[str, dict[str, Any]]:
    """Rows by name, asked for from another thread while the main thread's loop runs the coroutine until it is let go."""
    answer: list[dict[str, Any]] = []
    asking: list[threading.Thread] = []

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def ask() -> None:
            answer.extend(report())
            loop.call_soon_threadsafe(done.set)

        task = asyncio.create_task(coroutine, name="asked")
        await asyncio.sleep(0.05)
        asking.append(threading.Thread(target=ask))
        asking[0].start()
        await done.wait()
        task.cancel()

    asyncio.run(main())
    asking[0].join()  # it stands in the loop that it wakes: the next test would find that one
    return {row["name"]: row for row in answer}


async def starved() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def producer() -> None:
        raise ConnectionResetError("gone")

    made = asyncio.create_task(producer(), name="producer")
    await asyncio.gather(asyncio.create_task(queue.get(), name="consumer"))
    await made


def test_each_task_tells_its_stack_and_for_whom_it_waits() -> None:
    rows = told_meanwhile(starved())
    assert [f["name"].rpartition(".")[2] for f in rows["consumer"]["frames"]] == ["get"]
    assert rows["asked"]["of"] == ["consumer"]
    assert rows["asked"]["frames"][0]["name"].endswith("starved")
    assert sum(bool(row.get("main")) for row in rows.values()) == 1


def test_a_task_that_failed_is_told_with_the_line() -> None:
    failed = told_meanwhile(starved())["producer"]
    assert failed["failed"] == {"type": "ConnectionResetError", "message": "gone"}
    assert failed["frames"][0]["name"].endswith("producer")


def test_the_tasks_of_another_threads_loop_are_told_with_its_name_where_the_main_thread_has_none() -> None:
    ready = threading.Event()
    held: list[Any] = []

    async def fetch() -> None:
        held.extend((asyncio.get_running_loop(), asyncio.current_task()))
        ready.set()
        await asyncio.Queue[int]().get()

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(fetch())

    thread = threading.Thread(target=run, name="fetcher")
    thread.start()
    ready.wait()
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10.0
    while (
        not any(row["thread"] == "fetcher" and len(row["frames"]) > 1 for row in rows)
        and time.monotonic() < deadline
    ):
        rows = report()
    held[0].call_soon_threadsafe(held[1].cancel)
    thread.join()
    (row,) = (row for row in rows if row["thread"] == "fetcher")
    assert (row["thread"], row["main"]) == ("fetcher", True)
    assert [frame["name"].rpartition(".")[2] for frame in row["frames"]] == ["get", "fetch"]


def test_without_a_loop_there_is_nothing_to_tell() -> None:
    assert report() == []


def frames(*inner: tuple[str, str], line: int = 7) -> list[tuple[str, str, int]]:
    return [*((name, ASYNCIO + file, 1) for file, name in inner), ("collect", "/home/u/rollout.py", line)]


def judged(*rows: Task, threads: tuple[PythonThread, ...] = ()) -> LoopWait | None:
    main = thread(frames(("base_events.py", "_run_once")), thread_name="MainThread")
    stuck: Any = SimpleNamespace(capture=capture_of(main, *threads, tasks=rows))
    return blocking_task(stuck)


def beside(*rows: Task, threads: tuple[PythonThread, ...] = ()) -> LoopWait | None:
    """The same of a thread's loop, where the main thread waits at a queue."""
    main = thread(frames(), thread_name="MainThread")
    loop = thread(frames(("base_events.py", "_run_once")), thread_name="fetcher")
    told_by = tuple(replace(row, thread="fetcher") for row in rows)
    stuck: Any = SimpleNamespace(capture=capture_of(main, loop, *threads, tasks=told_by))
    return blocking_task(stuck)


def capture_of(*threads: PythonThread, tasks: tuple[Task, ...]) -> CaptureEvidence:
    return CaptureEvidence(
        number=2, stacks=threads, tasks=tasks, source="ranks/00000/captures/02", proc=NO_PROCESS, gaps=(),
        flight_recorder={},
    )  # fmt: skip


def task(name: str, *inner: tuple[str, str], line: int = 7, **more: Any) -> Task:
    return Task(name=name, main=name == "main", frames=thread(frames(*inner, line=line)).frames, **more)


GET = ("queues.py", "Queue.get")
READ = ("streams.py", "StreamReader.read")
SLEEP = ("tasks.py", "sleep")


def test_a_queue_whose_producer_failed_is_a_wait_within_the_process() -> None:
    failed = task("producer", line=30, failed=Failed(type="OSError", message=""))
    found = judged(task("main", GET), failed)
    assert found and (found.kind, found.place.line) == ("inside", 7)
    assert "producer ended by OSError" in found.why and ":30" in found.why


def test_who_awaits_a_task_waits_for_what_that_one_waits_for() -> None:
    found = judged(task("main", of=("reader",)), task("reader", READ, line=12))
    assert found and (found.kind, found.place.line, found.name) == ("outside", 12, "reader")


def test_a_task_that_waits_for_the_world_may_be_the_one_that_is_needed() -> None:
    found = judged(task("main", GET), task("reader", READ, line=12))
    assert found and found.kind == "outside" and found.strength.value < 0.7


def test_a_loop_in_which_something_goes_on_by_itself_is_left_alone() -> None:
    assert judged(task("main", GET), task("ticker", SLEEP)) is None
    # A future that anybody may set; a thread of an executor that works; tasks that nobody told of.
    assert judged(task("main")) is None
    worker = thread(frames(), thread_name="asyncio_0")
    assert judged(task("main", GET), threads=(worker,)) is None
    assert judged() is None


def test_a_loop_of_another_thread_waits_for_what_its_tasks_wait_for() -> None:
    found = beside(task("main", READ, line=12))
    assert found and (found.kind, found.place.line) == ("outside", 12)
    # One that runs for ever has no task for which it was begun.
    found = beside(task("a", READ, line=12), task("b", GET))
    assert found and (found.kind, found.place.line) == ("outside", 12)
    failed = task("producer", line=30, failed=Failed(type="OSError", message=""))
    found = beside(task("main", GET), failed)
    assert found and found.kind == "inside" and "producer ended by OSError" in found.why
    assert beside(task("main", READ), task("ticker", SLEEP)) is None
    assert beside(task("main", READ), threads=(thread(frames(), thread_name="worker"),)) is None
