"""Objects that a task could reach by the variables of its coroutines, some steps far: who could give what another one waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from nsadiag.agent.attaching.loops.layout import MOST_VALUES, Layout
from nsadiag.agent.attaching.loops.objects import (
    DICT_VALUES,
    FIRST_FIELD,
    LENGTH,
    TYPE,
    WORD,
    LayoutError,
    Memory,
)

STEPS, MOST_OBJECTS, MOST_ITEMS = 3, 2000, 64
TYPE_FLAGS, HAS_ATTRIBUTES = 168, 1 << 4
TYPE_DICT_OFFSET, MOST_OFFSET = 288, 1 << 16
ITEMS = 24  # of a tuple the first, of a list where they are, of a method its instance


def reachable(memory: Memory, layout: Layout, first: Iterable[int], wanted: frozenset[int]) -> set[int]:
    """Those of the wanted addresses that are among the first ones, or are held by them."""
    near, seen = set(first), set[int]()
    for _ in range(STEPS):
        seen |= near
        if len(seen) > MOST_OBJECTS or wanted <= seen:
            break
        near = {each for one in near for each in _held(memory, layout, one)} - seen - {0}
    return (seen | near) & wanted


def _held(memory: Memory, layout: Layout, address: int) -> Iterator[int]:
    with contextlib.suppress(LayoutError):
        kind = memory.type_name(address)
        if kind == "dict":
            yield from _of_dict(memory, address)
        elif kind == "set":
            yield from memory.members(address)
        elif kind == "list":
            yield from memory.words(memory.word(address + ITEMS), _size(memory, address))
        elif kind == "tuple":
            yield from memory.words(address + ITEMS, _size(memory, address))
        elif kind == "method":
            yield memory.word(address + ITEMS)
        elif kind == "cell":
            yield memory.word(address + FIRST_FIELD)
        elif memory.word(memory.word(address + TYPE) + TYPE_FLAGS) & HAS_ATTRIBUTES:
            yield from layout.values(memory, address)
        elif 0 < (offset := memory.word(memory.word(address + TYPE) + TYPE_DICT_OFFSET)) < MOST_OFFSET:
            yield from _of_dict(memory, memory.word(address + offset))


def _of_dict(memory: Memory, address: int) -> Iterator[int]:
    """Its values; of one that shares its keys with others of its class, some more."""
    if values := memory.word(address + DICT_VALUES):
        yield from memory.words(values, MOST_VALUES)
    else:
        yield from (value for _, value in memory.entries(address))


def _size(memory: Memory, address: int) -> int:
    return min(memory.word(address + LENGTH), MOST_ITEMS)


def variables(memory: Memory, layout: Layout, coroutine: int) -> tuple[int, ...]:
    """Addresses of what the variables of a suspended coroutine are."""
    at = coroutine + layout.instruction
    count = int.from_bytes(memory.read(at + WORD, 4), "little")
    if not 0 < count < 1 << 16:
        raise LayoutError(f"{count} values in a frame")
    return memory.words(at + 2 * WORD, count)
