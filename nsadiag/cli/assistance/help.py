"""The help of every command: options in groups, as wide as the terminal, plain text, with metavars in place of types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

BRACES = re.compile(r"^\{(.*)\}$")
# What help says of a number's limits, and of an argument's type.
NOISE = re.compile(r"; [\d.]*(?:<=)?x[<>]=[\d.]+(?=\])|  \[[\d.]*(?:<=)?x[<>]=[\d.]+\]| <[\w\[\]]+>$")
Function = TypeVar("Function", bound=Callable[..., Any])


class Grouped(TyperCommand):
    """A command whose help has its options in groups, as plain text, and names no type that the metavar does not."""

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


class Application(typer.Typer):
    """Commands with such help."""

    def command(self, *args: Any, **options: Any) -> Callable[[Function], Function]:
        return super().command(*args, **{"cls": Grouped, **options})
