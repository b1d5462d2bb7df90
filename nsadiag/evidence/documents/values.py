"""Documents as values: the dataclass of a row says both of what types its keys must be and how it is read.

A field without a default is needed: a row that lacks it is left out. In an annotation `int` is a count, `float` a finite
number, `X | None` may be null, and a tuple is a list; other shapes stand in `Annotated`. A field whose name is a keyword
of Python's has the key's in its metadata.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import typing
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from nsadiag.evidence.documents import shapes
from nsadiag.evidence.documents.shapes import Shape
from nsadiag.evidence.spans import MOST_RANKS

T = TypeVar("T")
Read = Callable[[Any], Any]

Rank = Annotated[int, shapes.between(0, MOST_RANKS)]
WorldSize = Annotated[int, shapes.between(1, MOST_RANKS)]
# A process of this machine: what counts or signals it must not be given another number.
Pid = Annotated[int, shapes.between(1, 2**31)]
Whole = Annotated[int, shapes.whole]
Measured = Annotated[float, shapes.measured]
PLAIN: dict[Any, Shape] = {
    str: shapes.text,
    bool: shapes.flag,
    int: shapes.count,
    float: shapes.number,
    Any: shapes.anything,
}


def shape_of(hint: Any) -> Shape:
    """The shape of what an annotation allows."""
    origin, of = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Annotated:
        shape: Shape = of[1]
        return shape
    if origin is Literal:
        return shapes.text
    if origin in (Union, UnionType):
        return shapes.maybe(shape_of(next(each for each in of if each is not NoneType)))
    if origin is list or (origin is tuple and of[-1] is Ellipsis):
        return shapes.rows(shape_of(of[0]))
    if origin is tuple:
        return shapes.of(*map(shape_of, of))
    if origin is dict:
        return shapes.table(shape_of(of[1]))
    return row_of(hint)


def row_of(kind: Any, **given: Shape) -> Shape:
    """The shape of a dataclass or TypedDict, which is a mapping on disk, or of a NamedTuple, a list.

    `given`: shapes of some keys, also of those that are no fields.
    """
    hints = _hints(kind)
    if hasattr(kind, "_fields"):
        shapes_, least = [*map(shape_of, hints.values())], len(hints) - len(kind._field_defaults)
        return shapes.either(*(shapes.of(*shapes_[:n]) for n in range(len(hints), least - 1, -1)))
    keys = _keys(kind)
    known = {keys[name]: given.get(name) or shape_of(hint) for name, hint in hints.items()} | given
    needed = _needed(kind)
    return shapes.record(
        {key: shape for key, shape in known.items() if key in needed},
        {key: shape for key, shape in known.items() if key not in needed},
    )


def row_at(place: str, **given: Shape) -> Shape:
    """The same of `.module:Class`, as this package would import it, at the first document of it: few commands read of all kinds."""
    module, _, name = place.partition(":")

    @functools.cache
    def shape() -> Shape:
        return row_of(getattr(importlib.import_module(module, __package__), name), **given)

    def check(value: Any, faults: shapes.Faults) -> Any:
        return shape()(value, faults)

    return check


def _needed(kind: Any) -> set[str]:
    """The keys that a mapping must have."""
    if not dataclasses.is_dataclass(kind):
        return {*kind.__required_keys__}
    missing = dataclasses.MISSING
    fields = (f for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing)
    return {_keys(kind)[field.name] for field in fields}


def _keys(kind: Any) -> dict[str, str]:
    """By field, its key on disk."""
    if not dataclasses.is_dataclass(kind):
        return {name: name for name in _hints(kind)}
    return {field.name: field.metadata.get("key", field.name) for field in dataclasses.fields(kind)}


def value_of(kind: type[T], document: Any) -> T:
    """The document, which has the shape, as a value: what it has besides is left out, what it lacks has its default."""
    hint: Any = kind
    read = _reader(hint)
    value: T = read(document) if read else document
    return value


def rows_of(kind: type[T], documents: Iterable[Any]) -> tuple[T, ...]:
    """Each of them as a value of that class."""
    return tuple(value_of(kind, document) for document in documents)


def table_of(kind: type[T], document: Mapping[str, Any]) -> dict[str, T]:
    """The same of a mapping's."""
    return {key: value_of(kind, value) for key, value in document.items()}


@functools.cache
def _reader(hint: Any) -> Read | None:
    """The function that makes values of an annotation; None where they are as they are in the document."""
    origin, of = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _of_mapping(hint)
    if hasattr(hint, "_fields"):
        return _of_list(hint)
    if origin in (Union, UnionType):
        read = _reader(next(each for each in of if each is not NoneType))
        return (lambda value: None if value is None else read(value)) if read else None
    if origin is tuple:
        return _of_tuple(of)
    if origin is dict and (each := _reader(of[1])):
        return lambda value: {key: each(item) for key, item in value.items()}
    return None


def _of_mapping(kind: Any) -> Read:
    fields: list[tuple[str, str, Read | None]] = []

    def read(document: Mapping[str, Any]) -> Any:
        if not fields:  # at first use: a class may hold itself
            keys = _keys(kind)
            fields.extend((name, keys[name], _reader(hint)) for name, hint in _hints(kind).items())
        return kind(
            **{
                name: each(document[key]) if each else document[key]
                for name, key, each in fields
                if key in document
            }
        )

    return read


def _of_list(kind: Any) -> Read:
    each = [_reader(hint) or _same for hint in _hints(kind).values()]
    return lambda value: kind(*(read(item) for read, item in zip(each, value, strict=False)))


def _of_tuple(of: tuple[Any, ...]) -> Read:
    if of[-1] is not Ellipsis:
        each = [_reader(hint) or _same for hint in of]
        return lambda value: tuple(read(item) for read, item in zip(each, value, strict=True))
    one = _reader(of[0])
    return (lambda value: tuple(map(one, value))) if one else tuple


def _same(value: Any) -> Any:
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)
