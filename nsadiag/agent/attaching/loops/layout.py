"""The places of what a coroutine, its code and a task hold, measured on some of this process's own."""

from __future__ import annotations

import asyncio
import functools
import os
import struct
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsadiag.agent.attaching.loops.objects import BASICSIZE, TYPE, WORD, LayoutError, Memory, memory_of

VERSIONS = ((3, 11), (3, 12), (3, 13))
MOST_VALUES = 16
FIRST_LINE = 123_456_789  # of a function that has no such line
SUSPENDED, OVER = 0xFF, (1, 4)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Offsets that each version of Python has of its own."""

    code: int  # of a coroutine: its code
    instruction: int  # the one at which it stands; the number of its values and these follow
    state: int
    file: int  # of code
    name: int
    lines: int
    first_line: int
    instructions: int
    loop: int  # of a task
    coroutine: int
    future: int  # for which it waits

    def values(self, memory: Memory, instance: int) -> tuple[int, ...]:
        """The first attributes of an instance, in the order in which its class has met them; what follows them is anything."""
        if sys.version_info[:2] == (3, 11):
            at = memory.word(instance - 4 * WORD)
        elif sys.version_info[:2] == (3, 12):
            at = memory.word(instance - 3 * WORD) + 1
        else:
            at = instance + memory.word(memory.word(instance + TYPE) + BASICSIZE) + WORD
        return memory.words(at, MOST_VALUES)


@functools.cache
def measured() -> Layout:
    """The layout of this process's Python. Raises LayoutError."""
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.version_info[:2] not in VERSIONS or free_threaded or sys.maxsize < 1 << 32:
        raise LayoutError(f"tasks of Python {sys.version_info[0]}.{sys.version_info[1]} are not read")
    found: list[Layout | LayoutError] = []
    # A loop cannot be run in a thread in which one runs.
    thread = threading.Thread(target=lambda: found.append(_measured()))
    thread.start()
    thread.join()
    if isinstance(found[0], LayoutError):
        raise found[0]
    return found[0]


def _measured() -> Layout | LayoutError:
    loop = asyncio.new_event_loop()
    try:
        future = loop.create_future()
        coroutine = _sample(future)
        task = loop.create_task(coroutine)
        loop.run_until_complete(asyncio.sleep(0))
        try:
            with memory_of(os.getpid()) as memory:
                return _of_samples(memory, loop, task, coroutine, future)
        except LayoutError as error:
            return error
        finally:
            future.set_result(None)
            loop.run_until_complete(task)
    finally:
        loop.close()


async def _sample(future: asyncio.Future[None]) -> None:
    await future


_sample.__code__ = _sample.__code__.replace(co_firstlineno=FIRST_LINE)


def _of_samples(memory: Memory, loop: object, task: Any, coroutine: Any, future: object) -> Layout:
    code: Any = coroutine.cr_code  # with fields of Python 3.11
    instructions = type(code).__basicsize__
    head = memory.words(id(coroutine), coroutine.__sizeof__() // WORD)
    at_code = _last(head, id(code))
    begin = id(code) + instructions
    inside = [i for i, word in enumerate(head) if i > at_code and begin <= word < begin + len(code.co_code)]
    body = memory.words(id(code), instructions // WORD)
    fields = memory.words(id(task), type(task).__basicsize__ // WORD)
    found = Layout(
        code=at_code * WORD, instruction=_only(inside) * WORD, state=_state(memory, coroutine, at_code * WORD),
        file=_last(body, id(code.co_filename)) * WORD, name=_last(body, id(code.co_qualname)) * WORD,
        lines=_last(body, id(code.co_linetable)) * WORD,
        first_line=memory.read(id(code), instructions).index(struct.pack("i", FIRST_LINE)), instructions=instructions,
        loop=_last(fields, id(loop)) * WORD, coroutine=_last(fields, id(coroutine)) * WORD,
        future=_last(fields, id(future)) * WORD,
    )  # fmt: skip
    some = weakref.WeakSet[type]()
    if id(some.data) not in found.values(memory, id(some)):  # type: ignore[attr-defined]
        raise LayoutError("attributes of instances lie elsewhere")
    return found


def _state(memory: Memory, suspended: Any, end: int) -> int:
    """The byte that tells whether a coroutine is suspended: it differs in one that is over."""
    over = _sample(None)  # type: ignore[arg-type]
    over.close()
    one, other = memory.read(id(suspended), end), memory.read(id(over), end)
    return _only([i for i in range(2 * WORD, end) if one[i] == SUSPENDED and other[i] in OVER])


def _last(words: Sequence[int], value: int) -> int:
    found = [place for place, word in enumerate(words) if word == value]
    if not found:
        raise LayoutError("a field is not where its object is")
    return found[-1]


def _only(places: Sequence[int]) -> int:
    if len(places) != 1:
        raise LayoutError(f"{len(places)} places for one field")
    return places[0]
