"""The pieces of a sentence: code between backticks, and words that a renderer would make links or notices of."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Mentions and addresses; on GitHub also numbers of issues, commits, formulas. In code they are what they are, and no more.
IN_CHATS = re.compile(r"@|://|www\.")
ON_GITHUB = re.compile(
    r"@|://|www\.|(?:mailto|xmpp):|\$|#\d|\bGH-\d|\*{3}|\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
_OPENING, _CLOSING = "([{\"'", "\"'.,;:!?)]}"
_BLANKS = re.compile(r"(\s+)")


def ticked(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text, and whether they are code: what stands between two runs of as many backticks.

    A run without its like is text like any other.
    """
    runs = list(re.finditer("`+", text))
    later: dict[int, int] = {}
    closing: dict[int, int] = {}
    for place in range(len(runs) - 1, -1, -1):
        length = len(runs[place][0])
        closing[place], later[length] = later.get(length, -1), place
    at, place = 0, 0
    while place < len(runs):
        end = closing[place]
        if end < 0:
            place += 1
            continue
        yield text[at : runs[place].start()], False
        yield _without_padding(text[runs[place].end() : runs[end].start()]), True
        at, place = runs[end].end(), end + 1
    yield text[at:], False


def _without_padding(code: str) -> str:
    """Markdown lets a blank at either end keep backticks apart."""
    padded = code[:1] == code[-1:] == " " and code.strip()
    return code[1:-1] if padded else code


def pieces(text: str, active: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """The same, with every word that has something `active` in it as code, but for the marks around it."""
    for part, is_code in ticked(text):
        if is_code or not active.search(part):
            yield part, is_code
            continue
        for word in _BLANKS.split(part):
            yield from _of_word(word) if active.search(word) else ((word, False),)


def _of_word(word: str) -> Iterator[tuple[str, bool]]:
    bare = word.lstrip(_OPENING)
    core = bare.rstrip(_CLOSING)
    yield word[: len(word) - len(bare)], False
    yield core, True
    yield bare[len(core) :], False
