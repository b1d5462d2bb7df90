"""Commands that are built when they are asked for, and their help: options in groups, plain text, with metavars in place of types."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from nsadiag.cli.assistance.option_values import taken_as_they_are

BRACES = re.compile(r"^\{(.*)\}$")
# What help says of a number's limits, and of an argument's type.
NOISE = re.compile(r"; [\d.]*(?:<=)?x[<>]=[\d.]+(?=\])|  \[[\d.]*(?:<=)?x[<>]=[\d.]+\]| <[\w\[\]]+>$")
WITHOUT_COMMAND = ("--help", "-h", "--version")
Function = TypeVar("Function", bound=Callable[..., Any])


class Grouped(TyperCommand):
    """A command whose help has its options in groups, as plain text, and names no type that the metavar does not."""

    def get_params(self, ctx: Any) -> list[Any]:
        return taken_as_they_are(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[PID]...` of typer's `[[PID]]...`, `PATH` of `{PATH}`."""
        return [BRACES.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                record = NOISE.sub("", record[0]), NOISE.sub("", record[1])
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(record)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Commands(TyperGroup):
    """All of them, and the options before them."""

    def get_params(self, ctx: Any) -> list[Any]:
        return taken_as_they_are(super().get_params(ctx))


class Application(typer.Typer):
    """Commands with such help."""

    def command(self, *args: Any, **options: Any) -> Callable[[Function], Function]:
        return super().command(*args, **{"cls": Grouped, **options})

    def built(self, words: Sequence[str]) -> Any:
        """The group as these words need it: with the command that they name, with names alone for `--help`, or with all.

        To build all takes half as long as to import typer.
        """
        known = {_name(info): info for info in self.registered_commands}
        part = copy.copy(self)
        if words and words[0] in known:
            part.registered_commands = [known[words[0]]]
        elif words and words[0] in WITHOUT_COMMAND:
            part.registered_commands = [_nameplate(info) for info in self.registered_commands]
        return typer.main.get_command(part)

    def commands(self) -> Mapping[str, Any]:
        """All of them by name, each built when it is looked up."""
        return _OnDemand(self)


class _OnDemand(Mapping[str, Any]):
    def __init__(self, app: Application) -> None:
        self._app = app
        self._names = tuple(_name(info) for info in app.registered_commands)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._app.built([name]).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _name(info: CommandInfo) -> str:
    assert info.callback is not None
    return info.name or info.callback.__name__


def _nameplate(info: CommandInfo) -> CommandInfo:
    """One command as the list of all shows it."""

    def nothing() -> None: ...

    return CommandInfo(name=_name(info), short_help=info.short_help, callback=nothing, cls=TyperCommand)
