"""Source in pieces by what they are, so that a page can colour them without a program of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String

# What is coloured, by Pygments' types; the first that holds a token counts.
CLASSES: tuple[tuple[Any, str], ...] = (
    (Comment, "c"),
    (String, "s"),
    (Number, "n"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Decorator, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "b"),
)
MOST = 400_000  # characters: beyond, the lexer takes longer than a page is worth

Pieces = tuple[tuple[str, str], ...]  # class, or none; text


def coloured(lines: Sequence[str]) -> list[Pieces]:
    """Each line in pieces. All of the file at once: a string may go over many lines."""
    text = "\n".join(lines)
    if len(text) > MOST:
        return [(("", line),) for line in lines]
    found: list[list[tuple[str, str]]] = [[]]
    for token, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        cls = next((cls for kind, cls in CLASSES if token in kind), "")
        for number, part in enumerate(value.split("\n")):
            if number:
                found.append([])
            if part:
                found[-1].append((cls, part))
    # The lexer takes some characters for line ends that splitlines does not, or the other way round: then nothing is coloured.
    whole = ["".join(part for _, part in pieces) for pieces in found]
    return [tuple(pieces) for pieces in found] if whole == list(lines) else [(("", line),) for line in lines]


def cut(pieces: Pieces, most: int) -> Iterator[tuple[str, str]]:
    """The same up to so many characters."""
    for cls, text in pieces:
        if most <= 0:
            return
        yield cls, text[:most]
        most -= len(text)
