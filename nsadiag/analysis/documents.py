"""Rows of a rank's documents as values: one class a document, with the fields that its shape promises (evidence/documents/types.py)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Tensor(NamedTuple):
    """A parameter or buffer, as a model has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Sum(NamedTuple):
    """Sums over a tensor's elements."""

    name: str
    shape: tuple[int, ...]
    total: float
    magnitude: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrap:
    """A model as it was handed to DDP or FSDP1: wraps.json."""

    wrapper: str = ""
    model: str
    place: str = ""
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """Parameters that had no gradient: of an optimizer at a change (ungraded.jsonl), or of a model now (ungraded.json)."""

    missing: tuple[str, ...]
    count: int = 0
    of: int = 0
    step: int = 0
    optimizer: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MissingNow:
    """Parameters in DDP that had no gradient at a look: ungraded.json."""

    step: int = 0
    optimizers: int = 0
    models: tuple[Missing, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """Hooks, handlers and the like that one line had registered by a step: piles.jsonl."""

    kind: str
    place: str
    step: int
    steps: int
    alive: int
    made: int


class SampledFrame(NamedTuple):
    """One frame of a sample."""

    file: str
    line: int
    function: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Stacks of a rank at one moment, innermost first: of its main thread, and of one `beside`: samples.jsonl."""

    t_mono_ns: int = 0
    frames: tuple[SampledFrame, ...] = ()
    beside: tuple[SampledFrame, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over a model's parameters and buffers at one step: replicas.jsonl, evaluated.jsonl."""

    step: int
    parameters: tuple[Sum, ...]
    buffers: tuple[Sum, ...] = ()
    elements: int = 0
    since: int | None = None  # steps since the wrap
    subject: tuple[int, int] | None = (
        None  # numbers of the wrap and of the optimizer; older recordings have none
    )
    issued: int | None = None  # collectives
    backwards: int | None = None
    shadowed: int = 0
    written: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    model: str = ""
    call: int = 0
    place: str = ""


def rows_of(kind: type[T], documents: Iterable[Any]) -> tuple[T, ...]:
    """Each of them as a value of that class."""
    return tuple(typed(kind, document) for document in documents)


def typed(kind: Any, value: Any) -> Any:
    """The value as the annotation says; what a document has besides is left out, what it lacks has its default."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: typed(hints[name], value[name]) for name in hints if name in value})
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*map(typed, _hints(kind).values(), value))
    origin, of = get_origin(kind), get_args(kind)
    if origin is tuple and value is not None:
        each = [of[0]] * len(value) if of[-1] is Ellipsis else of
        return tuple(map(typed, each, value))
    if origin in (Union, UnionType):
        return None if value is None else typed(next(k for k in of if k is not NoneType), value)
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
