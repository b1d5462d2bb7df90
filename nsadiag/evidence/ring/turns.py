"""The turns that a rank's code took in a real job, as words of 64 bits in a mapped file that outlives a SIGKILL.

A rehearsal writes down every line; a job can pay for its branches alone. What lies between two of them follows from the code: the
row of a code object in `paths.jsonl` has its `flow`, from which the reader makes the lines. The file holds two banks that take
turns: each begins with the frames that are open, so that what is left of a long job can be read.
"""

from __future__ import annotations

import array
import bisect
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, WHAT, Named

MARK = 0x6E7361_7475726E_01  # "nsaturn" in seven bytes, and the version of the format
HEADER = (
    8  # words: the mark, the count of words, and where the bank that is written and the one before it begin
)
ROOM = 1 << 18  # words in both banks, and in what the last callback may write beyond
BANK = ROOM // 2 - 4096
HALF = 16  # bits of an offset, in code units
FRAME = 0xFFFF  # in place of a branch: the whole code object
UNWOUND = 1 << HALF  # beside the offset at which a frame was left: by an exception

Row = tuple[int, int, int, int]  # offset in code units, line (0: none), Flow, target in code units
Passed = tuple[int, bool]


class Turn(IntEnum):
    """The kinds of words. `number` is a code object's unless it says otherwise, and `low` an offset in its code."""

    START = 1  # a frame begins, or a generator goes on
    HELD = 2  # a frame that was open when the bank began
    AT = 3  # the frame is here as it calls, or sees an exception
    BRANCH = 4  # low: from << HALF | to
    LEFT = 5  # a frame returns, yields, or is unwound (UNWOUND)
    HANDLED = 6  # an exception is handled from here on
    RAISED = 7  # number: of the type's name
    CALL = 8  # number: of the call's text; low: which of its group it is
    TEXT = 9  # number: of a read; low: of the text
    INT = 10  # low: 32 bits with a sign
    FLOAT = 11  # low: single precision
    DROPPED = 12  # from here on nothing is recorded of it: low is a branch, or FRAME
    UNREAD = 13  # number: of a read that is given up


class Flow(IntEnum):
    """The way on behind a row of a code object's flow."""

    ON = 0
    JUMP = 1
    BRANCH = 2  # recorded
    EITHER = 3  # a turn that is not recorded: of a comprehension, or of what awaits
    END = 4
    AWAIT = 5  # a jump back while there is something to wait for: its line goes on


@dataclass(frozen=True, kw_only=True)
class Turns:
    """One rank's turns as they were recorded; `begins` where nothing of its beginning was written over."""

    words: array.array[int]
    names: dict[int, Named]
    begins: bool


def read_turns(content: bytes, rows: tuple[Named, ...]) -> Turns | None:
    """The words of both banks in the order in which they were written; None where it is no such file."""
    words = array.array("Q", content[: len(content) // 8 * 8])
    if sys.byteorder != "little":
        words.byteswap()
    if len(words) < HEADER + ROOM or words[0] != MARK:
        return None
    count, bank, before = words[1], words[2], words[3]
    if not before <= bank <= count or count - before > ROOM:
        return None
    body = array.array("Q", (words[HEADER + n % ROOM] for n in range(before, count)))
    return Turns(words=body, names={row.number: row for row in rows}, begins=before == 0)


def split(word: int) -> tuple[int, int, int]:
    """Kind, number and low part of a word."""
    return word >> WHAT, word >> NUMBER & MOST_NUMBER, word & LOW


class Way:
    """The flow of control in one code object: the rows, and the lines between two offsets."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self._offsets = rows, [row[0] for row in rows]
        self._known: dict[tuple[int, int, int], tuple[Passed, ...] | None] = {}

    def at(self, offset: int) -> int:
        """The line at an offset; 0 where it has none."""
        index = bisect.bisect_right(self._offsets, offset) - 1
        return self.rows[index][1] if index >= 0 else 0

    def between(
        self, begin: int, end: int, unseen: frozenset[int] = frozenset()
    ) -> tuple[Passed, ...] | None:
        """Lines on the shortest way, the one at its beginning first; None where no way leads there.

        `unseen`: branches that were not recorded. Each line with whether a jump back led to it: then it begins anew.
        """
        key = (begin, end, hash(unseen))
        if key not in self._known:
            self._known[key] = self._shortest(begin, end, unseen)
        return self._known[key]

    def _shortest(self, begin: int, end: int, unseen: frozenset[int]) -> tuple[Passed, ...] | None:
        first, last = (max(bisect.bisect_right(self._offsets, each) - 1, 0) for each in (begin, end))
        if not self.rows:
            return None
        if first == last and begin <= end:
            return ((self.rows[first][1], False),)
        came: dict[int, int] = {}
        queue = deque([first])
        while queue:
            index = queue.popleft()
            for after in self._after(index, unseen):
                if after not in came:
                    came[after] = index
                    queue.append(after)
            if last in came:
                break
        if last not in came:
            return None
        way = [last]
        while came[way[-1]] != first:
            way.append(came[way[-1]])
        passed = [(self.rows[first][1], False)]
        before = first
        for index in reversed(way):
            passed.append((self.rows[index][1], index <= before and self.rows[before][2] != Flow.AWAIT))
            before = index
        return tuple(passed)

    def _after(self, index: int, unseen: frozenset[int]) -> Iterator[int]:
        offset, _, kind, target = self.rows[index]
        to = max(bisect.bisect_right(self._offsets, target) - 1, 0)
        is_open = kind == Flow.EITHER or (kind == Flow.BRANCH and offset in unseen)
        if kind in (Flow.JUMP, Flow.AWAIT) or is_open:
            yield to
        if (kind == Flow.ON or is_open) and index + 1 < len(self.rows):
            yield index + 1


def rows_of(text: str) -> list[Row]:
    """The flow of a code object, as its row in the file has it. Raises ValueError."""
    rows = []
    for part in text.split():
        offset, line, kind, target = map(int, part.split(","))
        rows.append((offset, line, kind, target))
    return rows
