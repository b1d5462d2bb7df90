"""The types of the values in a document: a shape passes on the values that fit, and leaves out the others.

A shape is a function of a value and a list, to which it adds the names of what it leaves out. It gives back the value
itself where all of it fits, a copy without the rest where some of it does, and NOTHING where it is of another type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Faults = list[str]
Shape = Callable[[Any, Faults], Any]
NOTHING: Any = object()
LARGEST = 2**63  # of the numbers that the kernel, torch and NCCL count with
MOST_TEXT = 1 << 20
DEEPEST = 64


def flag(value: Any, faults: Faults) -> Any:
    return value if value is True or value is False else NOTHING


def whole(value: Any, faults: Faults) -> Any:
    """A whole number of 64 bits."""
    return value if type(value) is int and -LARGEST <= value < LARGEST else NOTHING


def count(value: Any, faults: Faults) -> Any:
    """A whole number that is not negative: a pid, a line, a step."""
    return value if type(value) is int and 0 <= value < LARGEST else NOTHING


def number(value: Any, faults: Faults) -> Any:
    """A finite number."""
    if type(value) is float:
        return value if math.isfinite(value) else NOTHING
    return whole(value, faults)


def measured(value: Any, faults: Faults) -> Any:
    """A number of the job's own, which may be infinite or none."""
    return value if type(value) is float else whole(value, faults)


def text(value: Any, faults: Faults) -> Any:
    if type(value) is not str or len(value) > MOST_TEXT:
        return NOTHING
    return value if value.isascii() else value.encode(errors="replace").decode()


def anything(value: Any, faults: Faults) -> Any:
    return value


def maybe(shape: Shape) -> Shape:
    """The same, or null."""
    return lambda value, faults: value if value is None else shape(value, faults)


def either(*shapes: Shape) -> Shape:
    """The first that fits."""

    def check(value: Any, faults: Faults) -> Any:
        return next((found for s in shapes if (found := s(value, faults)) is not NOTHING), NOTHING)

    return check


def between(least: int, most: int) -> Shape:
    return lambda value, faults: value if type(value) is int and least <= value <= most else NOTHING


def rows(shape: Shape) -> Shape:
    """A list of any length; items that do not fit are left out."""

    def check(value: Any, faults: Faults) -> Any:
        if type(value) is not list:
            if type(value) is not tuple:
                return NOTHING
            value = list(value)  # a pickle's
        found = [shape(item, faults) for item in value]
        if all(map(operator.is_, found, value)):
            return value
        kept = [item for item in found if item is not NOTHING]
        if len(kept) < len(found):
            faults.append("an item of a list")
        return kept

    return check


def of(*shapes: Shape) -> Shape:
    """A list of just these."""

    def check(value: Any, faults: Faults) -> Any:
        value = list(value) if type(value) is tuple else value
        if type(value) is not list or len(value) != len(shapes):
            return NOTHING
        found = [s(item, faults) for s, item in zip(shapes, value, strict=True)]
        return NOTHING if any(item is NOTHING for item in found) else found

    return check


def table(shape: Shape, key: Callable[[str], bool] = lambda key: True) -> Shape:
    """A mapping from any text; entries that do not fit are left out."""

    def check(value: Any, faults: Faults) -> Any:
        if type(value) is not dict:
            return NOTHING
        found = {name: shape(item, faults) for name, item in value.items() if type(name) is str and key(name)}
        if all(map(operator.is_, found.values(), value.values())) and len(found) == len(value):
            return value
        kept = {name: item for name, item in found.items() if item is not NOTHING}
        faults.extend(str(name)[:60] for name in value if name not in kept)
        return kept

    return check


def record(need: Mapping[str, Shape], may: Mapping[str, Shape] | None = None) -> Shape:
    """A mapping that has all of `need`; of `may` what fits, and keys that nobody knows as they are."""
    known = [(name, shape, False) for name, shape in (may or {}).items()]
    known += [(name, shape, True) for name, shape in need.items()]

    def check(value: Any, faults: Faults) -> Any:
        if type(value) is not dict:
            return NOTHING
        changed: dict[str, Any] = {}
        for name, shape, needed in known:
            old = value.get(name, NOTHING)
            new = NOTHING if old is NOTHING else shape(old, faults)
            if new is NOTHING and needed:
                faults.append(name)
                return NOTHING
            if new is not old:
                changed[name] = new
                # Null says that it is not known, as a key does that is not there.
                if new is NOTHING and old is not None:
                    faults.append(name)
        if not changed:
            return value
        return {k: v for k, v in {**value, **changed}.items() if v is not NOTHING}

    return check


def nested(shape: Callable[[Shape], Shape]) -> Shape:
    """A shape that holds itself, to a certain depth: `shape` is given it."""
    found: Shape = lambda value, faults: NOTHING  # noqa: E731 - the innermost
    for _ in range(DEEPEST):
        found = shape(found)
    return found
