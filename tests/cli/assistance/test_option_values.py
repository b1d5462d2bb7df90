"""Values that skip typer's conversion are those that it would have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from nsadiag.cli.shared import app

GIVEN: dict[str, Any] = {"absent": None, "word": "7", "words": ["a", "7"], "path": Path("x"), "flag": True}


def made(parameter: Any, process: Any, value: Any) -> Any:
    """By whichever way; the error's text where it is refused."""
    try:
        return process(None, value)
    except Exception as error:
        return getattr(error, "message", type(error).__name__)


def parameters() -> list[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    return [(name, each) for name, command in group.commands.items() for each in command.params]


def test_every_option_takes_a_value_as_typer_would() -> None:
    compared = 0
    for name, parameter in parameters():
        if not hasattr(parameter, "type_descriptor"):
            pytest.skip("this typer converts nothing by pydantic")
        command: Any = app.commands()[name]
        ours = next(p for p in command.get_params(typer.Context(command)) if p.name == parameter.name)
        for value in GIVEN.values():
            is_many = ours.multiple or ours.nargs == -1
            if is_many != isinstance(value, list) and value is not None:
                continue
            theirs = made(parameter, parameter.process_value, value)
            assert made(ours, ours.process_value, value) == theirs, (name, ours.name, value)
            compared += 1
    assert compared > 300
