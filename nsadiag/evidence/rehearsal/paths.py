"""The path that the user's code of one rank took in a rehearsal, as words of 64 bits in a mapped file that outlives a SIGKILL.

A word is `what << 60 | number << 32 | line`. Numbers name rows of `paths.jsonl`: code objects and texts. The file has a
header of four words: the mark, the count of words that were written, and two that are free. Its first half keeps the
beginning; behind that it is a ring.
"""

from __future__ import annotations

import array
import sys
from dataclasses import dataclass
from enum import IntEnum

MARK = 0x6E7361_70617468_01  # "nsapath" in seven bytes, and the version of the format
HEADER = 4  # words
MOST_WORDS = 1 << 18
KEPT = MOST_WORDS // 2  # of the beginning
WHAT, NUMBER, LOW = 60, 32, (1 << 32) - 1
MOST_NUMBER = (1 << 28) - 1
TENSOR = "tensor "  # how the value of one element begins


class Word(IntEnum):
    """The kinds of words, and what their number and line mean."""

    LINE = 1  # a line of the innermost frame begins
    ENTER = 2  # a frame of this code begins, or goes on, at the line
    LEAVE = 3  # the innermost frame is left
    RAISED = 4  # an exception of this type is seen in the innermost frame
    CALL = 5  # a call of a group is announced: its text, and in place of the line the call's number
    NAME = 6  # the next word is the value of this name, which the last line reads
    VALUE = 7
    FOLDED = 8  # from here on no line of this code is recorded, until the next call


@dataclass(frozen=True, kw_only=True)
class Named:
    """A row of paths.jsonl. Of a code object `text` is its qualified name, and `line` its first."""

    number: int
    text: str
    file: str = ""
    line: int = 0
    code: int = 0  # of a name that is read there: the number of the code object
    flow: str = ""  # of one whose turns alone were recorded: how control flows in it (evidence.ring.turns)


@dataclass(frozen=True)
class Walked:
    """One rank's path as it was recorded."""

    words: array.array[int]
    names: dict[int, Named]
    is_whole: bool  # whether nothing of it was written over


def place_of(count: int) -> int:
    """The index behind the header of the word that is written as number `count`, from 0."""
    return count if count < MOST_WORDS else KEPT + (count - KEPT) % (MOST_WORDS - KEPT)


def read_path(content: bytes, rows: tuple[Named, ...]) -> Walked | None:
    """The words in the order in which they were written; None where it is no such file, or of another version."""
    words = array.array("Q", content[: len(content) // 8 * 8])
    if sys.byteorder != "little":
        words.byteswap()
    if len(words) < HEADER or words[0] != MARK:
        return None
    count = words[1]
    body = words[HEADER : HEADER + min(count, MOST_WORDS)]
    if count > MOST_WORDS:
        body = body[:KEPT]
    return Walked(words=body, names={row.number: row for row in rows}, is_whole=count <= MOST_WORDS)
