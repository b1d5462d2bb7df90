"""The tasks of a process's event loops: for each the coroutines that await each other, and the object in which they end."""

from __future__ import annotations

import contextlib
import itertools
import platform
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from nsadiag.agent.attaching.loops.layout import Layout, measured
from nsadiag.agent.attaching.loops.objects import FIRST_FIELD, TYPE_DICT, LayoutError, Memory, memory_of
from nsadiag.agent.attaching.loops.reach import reachable, variables
from nsadiag.evidence.documents.actors import TaskWait
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.user_code import is_user

# An object as py-spy shows it.
SHOWN = re.compile(r"^<[\w.]+ at 0x([0-9a-f]+)>$")
LOOPS = re.compile(r"(^|/)asyncio/\w+\.py$")
JOINS = re.compile(r"(^|/)asyncio/(tasks|taskgroups)\.py$")
JOINED = ("_asyncio.Task", "_GatheringFuture")
SUSPENDED = 0xFF
GENERATORS = ("coroutine", "generator", "async_generator")
# What stands between a coroutine and the one, or the future, that it awaits.
BETWEEN = (
    "coroutine_wrapper",
    "_asyncio.FutureIter",
    "async_generator_asend",
    "async_generator_athrow",
    "anext_awaitable",
)
REGISTERS = ("_scheduled_tasks", "_all_tasks")
MOST_TASKS, MOST_FRAMES = 4096, 64
PYTHON = re.compile(r"python(3\.\d+)")


def has_loop(threads: Iterable[PythonThread]) -> bool:
    """Whether an event loop runs in one of these threads."""
    return any(LOOPS.search(frame.filename) for thread in threads for frame in thread.frames)


def task_waits(pid: int, threads: Iterable[PythonThread]) -> tuple[TaskWait, ...]:
    """The tasks that are suspended, of all its event loops; `threads` have values. Raises LayoutError."""
    threads = tuple(threads)
    _check_version(pid)
    layout = measured()
    with memory_of(pid) as memory:
        return _Tasks(memory, layout).waits(threads)


def _check_version(pid: int) -> None:
    """Raises LayoutError where its Python is another one than this, whose objects were measured."""
    ours = platform.python_version_tuple()[:2]
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text()
        names = set(PYTHON.findall(maps))
        if names and f"{ours[0]}.{ours[1]}" not in names:
            raise LayoutError(f"its tasks can be read by nsadiag on Python {', '.join(sorted(names))} alone")


@dataclass(frozen=True, kw_only=True)
class _Coroutine:
    frame: StackFrame
    variables: tuple[int, ...]  # addresses


class _Ends(TypedDict):
    thread: int
    future: int
    by: int


@dataclass(frozen=True, kw_only=True)
class _Found:
    task: int
    chain: list[_Coroutine]
    thread: int
    future: int
    by: int


@dataclass(frozen=True)
class _Tasks:
    memory: Memory
    layout: Layout

    def waits(self, threads: tuple[PythonThread, ...]) -> tuple[TaskWait, ...]:
        loops = {address: t.os_thread_id or 0 for t in threads for address in _of_asyncio(t)}
        found = []
        for task in self._all(self._register(loops)):
            with contextlib.suppress(LayoutError):
                if chain := self._chain(self.memory.word(task + self.layout.coroutine)):
                    found.append(_Found(task=task, chain=chain, **self._of(task, chain, loops)))
        return self._with_givers(found, threads)

    def _of(self, task: int, chain: list[_Coroutine], loops: dict[int, int]) -> _Ends:
        """The thread of its loop, the future that it waits for, and the object of asyncio's by which it does so."""
        only = set(loops.values())
        thread = loops.get(self.memory.word(task + self.layout.loop)) or (min(only) if len(only) == 1 else 0)
        future = self.memory.word(task + self.layout.future)
        inner = list(itertools.takewhile(lambda c: LOOPS.search(c.frame.filename), chain))
        return _Ends(thread=thread, future=future, by=inner[-1].variables[0] if inner else future)

    def _with_givers(self, found: list[_Found], threads: tuple[PythonThread, ...]) -> tuple[TaskWait, ...]:
        wanted, tasks = frozenset(each.by for each in found), frozenset(each.task for each in found)
        # What gathers, a group or asyncio.wait holds the tasks that it waits for.
        held = {
            each.task: reachable(self.memory, self.layout, [each.by], tasks)
            if self._joins(each)
            else set[int]()
            for each in found
        }
        reach = {
            each.task: reachable(
                self.memory, self.layout, [v for c in each.chain for v in c.variables], wanted
            )
            for each in found
        }
        for thread in threads:
            shown = (
                local.repr or ""
                for frame in thread.frames
                for local in frame.locals or ()
                if is_user(frame.filename)
            )
            first = [int(match[1], 16) for text in shown if (match := SHOWN.match(text))]
            reach[thread.os_thread_id or 0] = reachable(self.memory, self.layout, first, wanted)
        return tuple(
            TaskWait(
                task=each.task,
                thread=each.thread,
                future=each.future,
                frames=tuple(c.frame for c in each.chain),
                joins=bool(joined := held[each.task] - {each.task}),
                givers=tuple(
                    sorted(joined or {o for o, reached in reach.items() if each.by in reached} - {each.task})
                ),
            )
            for each in found
        )

    def _joins(self, found: _Found) -> bool:
        """Whether it waits for tasks: for one, or by a function or an object of asyncio's for several."""
        kind = self.memory.type_name(found.by)
        return kind in JOINED or any(JOINS.search(c.frame.filename) for c in found.chain)

    def _register(self, instances: Iterable[int]) -> int:
        """The set in which asyncio keeps weak references to all tasks, by way of a method's globals."""
        for instance in instances:
            with contextlib.suppress(LayoutError):
                for cls in self.memory.classes(instance):
                    if (found := self._by_class(cls)) is not None:
                        return found
        raise LayoutError("where asyncio keeps its tasks was not found")

    def _by_class(self, cls: int) -> int | None:
        methods = self.memory.word(cls + TYPE_DICT)
        function = next(
            (
                value
                for _, value in self.memory.entries(methods)
                if self.memory.type_name(value) == "function"
            ),
            None,
        )
        if function is None:
            return None
        tasks = self.memory.named(self.memory.word(function + FIRST_FIELD), "tasks")
        if tasks is None or self.memory.type_name(tasks) != "module":
            return None
        names = self.memory.word(tasks + FIRST_FIELD)
        return next((found for each in REGISTERS if (found := self.memory.named(names, each))), None)

    def _all(self, register: int) -> Iterator[int]:
        values = self.layout.values(self.memory, register)
        references = next(value for value in values if value and self.memory.type_name(value) == "set")
        for reference in self.memory.members(references)[:MOST_TASKS]:
            with contextlib.suppress(LayoutError):
                task = self.memory.word(reference + FIRST_FIELD)
                if self.memory.type_name(task) == "_asyncio.Task":
                    yield task

    def _chain(self, coroutine: int) -> list[_Coroutine]:
        """Its coroutines, innermost first; none where it runs just now, is over or has not begun."""
        found: list[_Coroutine] = []
        awaited = coroutine
        while len(found) < MOST_FRAMES:
            kind = self.memory.type_name(awaited)
            if kind in BETWEEN:
                awaited = self.memory.word(awaited + FIRST_FIELD)
            elif kind in GENERATORS and self.memory.read(awaited + self.layout.state, 1)[0] == SUSPENDED:
                values = variables(self.memory, self.layout, awaited)
                found.append(_Coroutine(frame=self._frame(awaited), variables=values))
                awaited = values[-1]  # the topmost of its values
            else:
                break
        return found[::-1]

    def _frame(self, coroutine: int) -> StackFrame:
        code, at = (
            self.memory.word(coroutine + each) for each in (self.layout.code, self.layout.instruction)
        )
        first = struct.unpack("i", self.memory.read(code + self.layout.first_line, 4))[0]
        table = self.memory.raw(self.memory.word(code + self.layout.lines))
        like = compile("0", "", "eval").replace(co_firstlineno=first, co_linetable=table)
        place = at - code - self.layout.instructions
        line = next((line for start, end, line in like.co_lines() if start <= place < end), None)
        file, name = (
            self.memory.text(self.memory.word(code + each)) for each in (self.layout.file, self.layout.name)
        )
        return StackFrame(name=name, filename=file, line=line or first)


def _of_asyncio(thread: PythonThread) -> Iterator[int]:
    """Addresses of the objects whose methods of asyncio's stand on the stack: its loop is one."""
    for frame in thread.frames:
        if LOOPS.search(frame.filename):
            shown = next((local.repr or "" for local in frame.locals or () if local.name == "self"), "")
            if match := SHOWN.match(shown):
                yield int(match[1], 16)
