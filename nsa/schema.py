"""Typed, immutable configurations in plain Python, with errors that name the nearest known key."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class ConfigError(ValueError):
    """A configuration that cannot be used: `message` names the field and its value, `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint or "`python -m nsa.train --help` lists every key"


class Bound(NamedTuple):
    """The lower bound of a number, exclusive if `above`."""

    least: float
    above: bool = False


PositiveInt = Annotated[int, Bound(1)]
NonNegativeInt = Annotated[int, Bound(0)]
PositiveFloat = Annotated[float, Bound(0, above=True)]
NonNegativeFloat = Annotated[float, Bound(0)]


class Field(NamedTuple):
    """One key of a configuration."""

    annotation: Any
    default: Any


class Config:
    """Base of all configurations: class attributes with annotations are its fields and their defaults.

    `Config(key=value, ...)` converts what a YAML file or a command line gives: numbers and switches from text, tuples
    from lists, configurations from dicts. ConfigError names what cannot be used.
    """

    model_fields: ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hints = typing.get_type_hints(cls, include_extras=True)
        cls.model_fields = {
            name: Field(hints[name], vars(cls)[name]) for name in vars(cls).get("__annotations__", {})
        }

    def __init__(self, **values: Any) -> None:
        for key in values:
            if key not in self.model_fields:
                raise ConfigError(
                    f"unknown key {key!r} in {type(self).__name__}", nearest(key, self.model_fields)
                )
        for name, field in self.model_fields.items():
            given = values.get(name, field.default)
            object.__setattr__(self, name, converted(given, field.annotation, name))
        self.check()

    def check(self) -> None:
        """Raise ConfigError for fields that do not fit each other."""

    def model_copy(self, *, update: dict[str, Any] | None = None) -> Any:
        """The same with some fields changed."""
        return type(self)(**{**vars(self), **(update or {})})

    def model_dump(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """Plain values, for a JSON file or as keyword arguments."""
        return {
            name: value.model_dump(exclude_defaults=exclude_defaults) if isinstance(value, Config) else value
            for name, value in vars(self).items()
            if not (exclude_defaults and value == self.model_fields[name].default)
        }

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: use model_copy(update={{{name!r}: ...}})")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def nearest(key: object, known: Iterable[str]) -> str:
    """A hint that names the known key most like `key`, or all of them."""
    near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


def converted(value: Any, annotation: Any, where: str) -> Any:
    """`value` converted to the type `annotation`; ConfigError that names `where` and the values it accepts."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        return converted(value, next(part for part in parts if part is not type(None)), where)
    if origin is Annotated:
        return _bounded(converted(value, parts[0], where), parts[1], value, where)
    if origin is Literal:
        if value not in parts:
            raise ConfigError(f"{where} is {value!r}", f"choose one of {', '.join(map(repr, parts))}")
        return value
    if origin is tuple:
        return _as_tuple(value, parts, where)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return _as_config(value, annotation, where)
    return _as_scalar(value, annotation, where)


def _as_config(value: Any, kind: type[Config], where: str) -> Config:
    if isinstance(value, kind):
        return value
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}", "it holds keys and values")
    try:
        return kind(**{str(key): part for key, part in value.items()})
    except ConfigError as error:
        separator = ": " if error.message.startswith("unknown key") else "."
        raise ConfigError(f"{where}{separator}{error.message}", error.hint) from None


def _as_tuple(value: Any, parts: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where} is {value!r}", "it is a list")
    if parts[-1] is Ellipsis:
        return tuple(converted(item, parts[0], where) for item in value)
    if len(value) != len(parts):
        raise ConfigError(f"{where} is {value!r}", f"it has {len(parts)} items")
    return tuple(converted(item, part, where) for item, part in zip(value, parts, strict=True))


def _as_scalar(value: Any, kind: type, where: str) -> Any:
    text = value.strip().lower() if isinstance(value, str) else None
    if kind is bool and (isinstance(value, bool) or text in (*_TRUE, *_FALSE)):
        return value if isinstance(value, bool) else text in _TRUE
    if kind is str and isinstance(value, str):
        return value
    if kind in (int, float) and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            number = None
        if number is not None and (kind is float or text is not None or number == value):
            return number
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise ConfigError(f"{where} is {value!r}", f"it must be {names[kind]}")


def _bounded(number: Any, bound: Bound, given: Any, where: str) -> Any:
    if number < bound.least or (bound.above and number == bound.least) or number != number:  # noqa: PLR0124
        than = "greater than" if bound.above else "at least"
        raise ConfigError(f"{where} is {given!r}", f"it must be {than} {bound.least:g}")
    return number
