"""The tasks of a process's event loops: for each the coroutines that await each other, and the object in which they end."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent.attaching.loops.layout import Layout, measured
from nsadiag.agent.attaching.loops.objects import FIRST_FIELD, TYPE_DICT, WORD, LayoutError, Memory, memory_of
from nsadiag.evidence.documents.actors import TaskWait
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame

# An object as py-spy shows it.
SHOWN = re.compile(r"^<[\w.]+ at 0x([0-9a-f]+)>$")
LOOPS = re.compile(r"(^|/)asyncio/\w+\.py$")
SUSPENDED = 0xFF
GENERATORS = ("coroutine", "generator", "async_generator")
# What stands between a coroutine and the one, or the future, that it awaits.
BETWEEN = ("coroutine_wrapper", "_asyncio.FutureIter", "async_generator_asend", "async_generator_athrow", "anext_awaitable")
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


@dataclass(frozen=True)
class _Tasks:
    memory: Memory
    layout: Layout

    def waits(self, threads: tuple[PythonThread, ...]) -> tuple[TaskWait, ...]:
        loops = {address: t.os_thread_id or 0 for t in threads for address in _of_asyncio(t)}
        register = self._register(loops)
        only = set(loops.values())
        found = []
        for task in self._all(register):
            with contextlib.suppress(LayoutError):
                loop = loops.get(self.memory.word(task + self.layout.loop))
                thread = loop if loop is not None else next(iter(only)) if len(only) == 1 else 0
                coroutine = self.memory.word(task + self.layout.coroutine)
                if (frames := self._chain(coroutine)) is not None:
                    future = self.memory.word(task + self.layout.future)
                    found.append(TaskWait(task=task, thread=thread, frames=frames, future=future))
        return tuple(found)

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
            (value for _, value in self.memory.entries(methods) if self.memory.type_name(value) == "function"), None
        )
        if function is None:
            return None
        tasks = self.memory.named(self.memory.word(function + FIRST_FIELD), "tasks")
        if tasks is None or self.memory.type_name(tasks) != "module":
            return None
        names = self.memory.word(tasks + FIRST_FIELD)
        return next((found for each in REGISTERS if (found := self.memory.named(names, each))), None)

    def _all(self, register: int) -> Iterator[int]:
        values = self.layout.values(self.memory, register, 4)
        references = next(value for value in values if value and self.memory.type_name(value) == "set")
        for reference in self.memory.members(references)[:MOST_TASKS]:
            with contextlib.suppress(LayoutError):
                task = self.memory.word(reference + FIRST_FIELD)
                if self.memory.type_name(task) == "_asyncio.Task":
                    yield task

    def _chain(self, coroutine: int) -> tuple[StackFrame, ...] | None:
        """Its frames, innermost first; None where it runs just now, is over or has not begun."""
        frames: list[StackFrame] = []
        awaited = coroutine
        while len(frames) < MOST_FRAMES:
            kind = self.memory.type_name(awaited)
            if kind in BETWEEN:
                awaited = self.memory.word(awaited + FIRST_FIELD)
            elif kind in GENERATORS:
                if self.memory.bytes(awaited + self.layout.state, 1)[0] != SUSPENDED:
                    break
                frames.append(self._frame(awaited))
                awaited = self._awaited(awaited)
            else:
                break
        return tuple(reversed(frames)) or None

    def _frame(self, coroutine: int) -> StackFrame:
        code, at = (self.memory.word(coroutine + each) for each in (self.layout.code, self.layout.instruction))
        first = struct.unpack("i", self.memory.bytes(code + self.layout.first_line, 4))[0]
        table = self.memory.raw(self.memory.word(code + self.layout.lines))
        like = compile("0", "", "eval").replace(co_firstlineno=first, co_linetable=table)
        place = at - code - self.layout.instructions
        line = next((line for start, end, line in like.co_lines() if start <= place < end), None)
        file, name = (self.memory.text(self.memory.word(code + each)) for each in (self.layout.file, self.layout.name))
        return StackFrame(name=name, filename=file, line=line or first)

    def _awaited(self, coroutine: int) -> int:
        """The topmost of its values."""
        (count,) = struct.unpack("i", self.memory.bytes(coroutine + self.layout.instruction + WORD, 4))
        if not 0 < count < 1 << 16:
            raise LayoutError(f"{count} values in a frame")
        return self.memory.word(coroutine + self.layout.instruction + WORD * (1 + count))


def _of_asyncio(thread: PythonThread) -> Iterator[int]:
    """Addresses of the objects whose methods of asyncio's stand on the stack: its loop is one."""
    for frame in thread.frames:
        if LOOPS.search(frame.filename):
            shown = next((local.repr or "" for local in frame.locals or () if local.name == "self"), "")
            if match := SHOWN.match(shown):
                yield int(match[1], 16)


def loop_threads(tasks: Iterable[TaskWait]) -> set[int]:
    """Threads whose loop's tasks are known."""
    return {task.thread for task in tasks}
