"""Tasks of an event loop in another process: where each waits, and who could give what it waits for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import wait_until

from nsadiag.agent.attaching.loops import tasks
from nsadiag.agent.attaching.loops.layout import measured
from nsadiag.agent.attaching.loops.objects import LayoutError
from nsadiag.agent.attaching.loops.tasks import has_loop, task_waits
from nsadiag.agent.captures.python.py_spy import stacks_with_values
from nsadiag.evidence.documents.actors import TaskWait

PROGRAM = """
import asyncio

class Service:
    def __init__(self):
        self.results, self.resumed = asyncio.Queue(), asyncio.Event()

async def takes(service):
    return await service.results.get()

async def gives(service):
    await asyncio.sleep(3600)
    await service.results.put(1)

async def joins(other):
    await other

async def alone():
    queue = asyncio.Queue()
    await queue.get()

async def höflich(future):
    await future

async def main():
    service, future = Service(), asyncio.get_running_loop().create_future()
    nap = asyncio.create_task(gives(service))
    kept = [nap, *map(asyncio.create_task, (takes(service), joins(nap), alone(), höflich(future)))]
    asyncio.get_running_loop().call_later(0.2, lambda: open("ready", "w").close())
    await asyncio.gather(*kept)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TaskWait]]:
    """By the outermost coroutine of each."""
    here = tmp_path_factory.mktemp("loop")
    (here / "program.py").write_text(PROGRAM, encoding="utf-8")
    process = subprocess.Popen([sys.executable, "program.py"], cwd=here)
    try:
        wait_until((here / "ready").exists, "all tasks wait")
        threads = stacks_with_values(process.pid)
        assert has_loop(threads)
        yield {wait.frames[-1].name: wait for wait in task_waits(process.pid, threads)}
    finally:
        process.kill()
        process.wait()


def test_every_task_is_found_with_its_coroutines(waits: dict[str, TaskWait]) -> None:
    assert set(waits) == {"takes", "gives", "joins", "alone", "höflich", "main"}
    found = [(f.name, Path(f.filename).name) for f in waits["takes"].frames]
    assert found == [("Queue.get", "queues.py"), ("takes", "program.py")]
    assert (
        PROGRAM.splitlines()[waits["takes"].frames[-1].line - 1].strip()
        == "return await service.results.get()"
    )
    assert len({wait.thread for wait in waits.values()}) == 1


def test_who_holds_the_queue_could_fill_it(waits: dict[str, TaskWait]) -> None:
    assert waits["gives"].task in waits["takes"].givers
    assert waits["gives"].task not in waits["alone"].givers


def test_who_waits_for_tasks_waits_for_these(waits: dict[str, TaskWait]) -> None:
    assert waits["joins"].joins and waits["joins"].givers == (waits["gives"].task,)
    children = {wait.task for name, wait in waits.items() if name != "main"}
    assert waits["main"].joins and set(waits["main"].givers) == children
    assert not waits["takes"].joins


def test_a_process_of_another_python_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.platform, "python_version_tuple", lambda: ("3", "99", "0"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(LayoutError, match="can be read by nsadiag on Python"):
            wait_until(lambda: "python" in Path(f"/proc/{process.pid}/maps").read_text(), "it runs")
            task_waits(process.pid, ())
        process.kill()


def test_the_layout_is_measured_once() -> None:
    assert measured() is measured()
