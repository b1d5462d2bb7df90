"""Command lines as documents and reports have them: whole where they are of a usual length, and shortened where not."""

from __future__ import annotations

from collections.abc import Sequence

# A file name has 255 bytes, a path 4,096, and a line that a person can use some thousand.
MOST_OF_WORD, MOST_OF_LINE = 4096, 16_384
ROOM = 100  # for what is said instead
LEFT_OUT = " characters in all, left out by nsadiag]"


def shortened(words: Sequence[str]) -> list[str]:
    """The words; of one that is very long the beginning, with its length, and of a very long line the first ones, with the number of the others."""
    if all(len(word) <= MOST_OF_WORD for word in words) and sum(map(len, words)) + len(words) <= MOST_OF_LINE:
        return list(words)
    shown: list[str] = []
    room = MOST_OF_LINE - ROOM
    for place, word in enumerate(words):
        short = (
            word if len(word) <= MOST_OF_WORD else f"{word[: MOST_OF_WORD - ROOM]}... [{len(word)}{LEFT_OUT}"
        )
        if len(short) > room:
            rest = words[place:]
            shown.append(f"[{len(rest)} more arguments of {sum(map(len, rest))}{LEFT_OUT}")
            break
        shown.append(short)
        room -= len(short) + 1
    return shown


def is_shortened(words: Sequence[str]) -> bool:
    """Whether the line cannot be run as it is written."""
    return any(word.endswith(LEFT_OUT) for word in words)
