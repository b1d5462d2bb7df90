"""A mistake on the command line, as a line and a hint: the option and the value as typed, and the nearest name there is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from nsadiag.errors import did_you_mean

# By what typer's exception says of a value that does not fit.
WANTED = {
    "no duration": "give seconds, or 90s, 10m, 2h",
    "valid number": "give a number",
    "valid integer": "give a whole number",
    "greater than or equal to 0": "give 0 or more",
    "greater than or equal to 1": "give 1 or more",
    "less than or equal to 65535": "give a port, 65535 at most",
}


def said_of(error: Any, typed: Sequence[str]) -> tuple[str, str]:
    """Message and hint for one of typer's exceptions, which newer versions make of classes of their own."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "nsadiag"
    lists = f"{command} --help lists what there is"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return no_such_option(error.option_name, options_of(error.ctx.command), lists)
    if kind == "MissingParameter" and error.param is not None:
        return f"{_name(error.param)} is missing", f"{command} --help shows an example"
    if kind == "BadParameter" and error.param is not None:
        return _unfit(error, typed, lists)
    if kind == "UsageError" and error.message.startswith("No such command"):
        word = error.message.split("'")[1] if "'" in error.message else ""
        return f"no such command: {word}", did_you_mean(word, error.ctx.command.commands) or lists
    if kind == "UsageError" and "unexpected extra argument" in error.message:
        words = error.message.partition(" (")[2].removesuffix(")")
        return f"{command} takes no argument {words!r}", lists
    return error.format_message(), lists


def no_such_option(option: str, known: Iterable[str], otherwise: str) -> tuple[str, str]:
    """Message and hint for an option that is not there."""
    return f"no such option: {option}", did_you_mean(option, known) or otherwise


def options_of(command: Any) -> list[str]:
    """Every spelling of every option of a command."""
    return [name for each in command.params for name in each.opts if name.startswith("-")]


def _unfit(error: Any, typed: Sequence[str], lists: str) -> tuple[str, str]:
    name, value = _name(error.param), _value(error.param.opts, typed)
    if value is None:
        name, value = _set_elsewhere(error, name)
    said = f"{name} is {value!r}" if value is not None else f"{name}: {error.message}"
    hint = next((hint for part, hint in WANTED.items() if part in error.message), lists)
    return said, hint


def _set_elsewhere(error: Any, name: str) -> tuple[str, Any]:
    """The variable or the file that gives an option its value, and the value; None where neither does."""
    value = (getattr(error.ctx, "default_map", None) or {}).get(error.param.name)
    variable = f"NSADIAG_{error.param.name.upper()}"
    if value is None:
        return name, None
    return (variable if os.environ.get(variable) == value else f"{name} of pyproject.toml"), value


def _name(parameter: Any) -> str:
    """An option as it is typed, or the name of an argument."""
    longest: str = max(parameter.opts, key=len)
    return longest if longest.startswith("-") else str(parameter.metavar or longest.upper()).strip("[]")


def _value(options: Sequence[str], typed: Sequence[str]) -> str | None:
    """The value that follows one of these options, as it was typed."""
    for word, following in zip(typed, (*typed[1:], None), strict=True):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else following
    return None
