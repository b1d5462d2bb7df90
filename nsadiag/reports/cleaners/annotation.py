"""The cleaner of workflow commands: annotations of GitHub's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from nsadiag.printing import Commands, one_line


def annotation(level: Literal["error", "warning"], properties: Mapping[str, str], message: str) -> Commands:
    """`::error file=train.py,line=41,title=...::...`, with what has a meaning there escaped; empty properties are left out."""
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    return Commands(f"::{level} {given}::{_message(message)}\n")


def together(each: Iterable[Commands]) -> Commands:
    """All of them, a line each."""
    return Commands("".join(each))


def _message(text: str) -> str:
    return one_line(text).replace("%", "%25").replace("##[", "## [")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
