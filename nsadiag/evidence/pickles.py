"""Reads torch's flight-recorder pickles without running anything that a pickle can ask for.

A pickle is a program. The standard unpickler runs it, and whoever can write a dump could run code in the
analysis of it. This reader knows only the instructions that build lists, tuples, dicts, strings and numbers.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsadiag.evidence.documents.files import EvidenceRefused, read_evidence

MAX_DEPTH = 64  # a dump has six levels
# One byte can ask for one of 64: a dump of 20,000 collectives with their stacks has under a million.
MOST_CONTAINERS = 2_000_000
CONTAINERS = frozenset({"EMPTY_LIST", "EMPTY_DICT", "LIST", "DICT", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})


class PickleRefused(Exception):
    """Not a pickle, a broken one, or one that holds more than plain values; the message says which."""


def read_pickle(path: Path) -> Any:
    """The file's plain values. Raises PickleRefused, and OSError if there is no file to read."""
    try:
        data = read_evidence(path)
    except EvidenceRefused as error:
        raise PickleRefused(str(error.strerror)) from None
    return loads(data)


def loads(data: bytes) -> Any:
    """Lists, tuples, dicts, strings, numbers, booleans and None. Raises PickleRefused, and nothing else."""
    try:
        value = _Machine().run(data)
        _check_shape(value)
    except PickleRefused:
        raise
    except Exception as error:
        raise PickleRefused(f"not a whole pickle ({type(error).__name__}: {error})"[:200]) from None
    return value


class _Mark:
    """The beginning of the items of the container being built."""


_MARK = _Mark()
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    }
)  # fmt: skip


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.operations: dict[str, Callable[[Any], object]] = {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "MARK": lambda _: self.stack.append(_MARK),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_TUPLE": lambda _: self.stack.append(()),
            "LIST": lambda _: self.stack.append(self._items()),
            "TUPLE": lambda _: self.stack.append(tuple(self._items())),
            "DICT": lambda _: self.stack.append(_pairs(self._items())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._items()),
            "SETITEM": lambda _: self._update([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._update(self._items()),
            "POP": lambda _: self.stack.pop(),
            "POP_MARK": lambda _: self._items(),
            "DUP": lambda _: self.stack.append(self.stack[-1]),
            "MEMOIZE": lambda _: self._put(len(self.memo)),
            "PUT": self._put,
            "BINPUT": self._put,
            "LONG_BINPUT": self._put,
            "GET": self._get,
            "BINGET": self._get,
            "LONG_BINGET": self._get,
        }

    def run(self, data: bytes) -> Any:
        """genops only decodes: numbers and strings come out of it, and names of instructions."""
        containers = 0
        for instruction, argument, place in pickletools.genops(data):
            name = instruction.name
            if name in LITERALS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name])
            elif name == "STOP":
                return self._result()
            elif name in self.operations:
                self.operations[name](argument)
                containers += name in CONTAINERS
                if containers > MOST_CONTAINERS:
                    raise PickleRefused(f"more than {MOST_CONTAINERS:,} lists and dicts")
            else:
                raise PickleRefused(f"{name} at byte {place}: only plain values are read from a pickle")
        raise PickleRefused("it has no end")

    def _result(self) -> Any:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise PickleRefused("it does not end with one value")
        return self.stack[0]

    def _items(self) -> list[Any]:
        """The items above the topmost mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise PickleRefused("a container without a beginning")

    def _tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise PickleRefused("a tuple with items missing")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise PickleRefused("items are added to something that is no list")
        self.stack[-1].extend(items)

    def _update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise PickleRefused("keys are set in something that is no dict")
        self.stack[-1].update(_pairs(items))

    def _put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def _get(self, number: int) -> None:
        self.stack.append(self.memo[number])


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise PickleRefused("a key without a value")
    return dict(zip(items[::2], items[1::2], strict=True))


def _check_shape(value: Any) -> None:
    """Refuses what contains itself or is absurdly deep: whoever walks or prints it would never end."""
    height: dict[int, int] = {}
    open_: set[int] = set()
    pending: list[tuple[Any, bool]] = [(value, False)]
    while pending:
        item, done = pending.pop()
        if item is _MARK:
            raise PickleRefused("a mark inside a value")
        if not isinstance(item, list | tuple | dict):
            continue
        inside = [*item.keys(), *item.values()] if isinstance(item, dict) else item
        if done:
            open_.discard(id(item))
            height[id(item)] = 1 + max((height.get(id(part), 0) for part in inside), default=0)
            if height[id(item)] > MAX_DEPTH:
                raise PickleRefused(f"nested more than {MAX_DEPTH} deep")
        elif id(item) in open_:
            raise PickleRefused("a value that contains itself")
        elif id(item) not in height:
            open_.add(id(item))
            pending.append((item, True))
            pending.extend((part, False) for part in inside)
