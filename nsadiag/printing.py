"""Everything that nsadiag prints on stdout and stderr: cleaned here, since most of it quotes what others wrote."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

_CONTROL = re.compile(
    # Escape sequences of a terminal: window titles and the like, colours, cursor moves; then bare control characters.
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    # What is shown in another order than it is written in, or not at all: a path could be read backwards.
    r"|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
_UNENCODED = re.compile("[\ud800-\udfff]")  # bytes of a file's name, as Python keeps them
# GitHub's runner obeys a line that begins with `::name` behind any blanks, and `##[name]` wherever it stands.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:[a-z])|##(?=\[)", re.MULTILINE)
# For terminals that show nothing else; the legend goes through the same table, so letters stay explained.
_ASCII = str.maketrans({"✓": "+", "✗": "x", "±": "+-", "·": ".", "µ": "u", "…": "~", "━": "=", "─": "-"})


def clean(text: object) -> str:
    """The text without terminal escapes and control characters; newlines and tabs stay, what is in no encoding is a mark."""
    return _UNENCODED.sub("\ufffd", _CONTROL.sub("", str(text)))


def one_line(text: object) -> str:
    return " ".join(clean(text).split())


def cleaned(value: Any) -> Any:
    """A document of plain values, each text in it cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key) if isinstance(key, str) else key: cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def for_terminal(text: object) -> str:
    """Cleaned, and no command to GitHub's runner either, which reads what is printed."""
    return _COMMAND.sub(lambda found: f"{found[1] or ''}: " if found[1] is not None else "## ", clean(text))


def ascii_only(text: str) -> str:
    """The same in ASCII: an encoding error must not hide a verdict."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


class Shown(str):
    """Text that the cleaner of a medium has made. A `str` is from outside until then, whoever composed it."""

    __slots__ = ()


class Commands(Shown):
    """Lines that GitHub's runner is meant to obey."""

    __slots__ = ()


def show(text: object, *, end: str = "\n") -> None:
    """A result, on stdout; where its reader has read enough, as `head` does, the rest is for nobody."""
    try:
        print(_printable(text), end=end, flush=True)
    except BrokenPipeError:
        unread()


def unread() -> None:
    """From here on stdout leads nowhere: the command goes on, and ends with its own exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def note(text: object, *, end: str = "\n") -> None:
    """Progress, or a mistake, on stderr."""
    print(_printable(text), end=end, file=sys.stderr, flush=True)


def _printable(text: object) -> str:
    return text if isinstance(text, Commands) else for_terminal(text)
