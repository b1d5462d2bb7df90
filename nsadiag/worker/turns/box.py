"""The file of turns: two banks in one mapped ring, and the rows of the texts and code objects that its words name."""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path

from nsadiag.evidence.layout import open_private
from nsadiag.evidence.ring.turns import BANK, HEADER, MARK, ROOM
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.worker.descriptors import opened_high

MOST_ROWS = 1 << 15


class Box:
    """Writes words without a system call; a row is written once, when it is first named."""

    def __init__(self, words: Path, rows: Path) -> None:
        with opened_high():
            with open_private(words, "w+b") as file:
                # Touching a page of a sparse file on a full disk kills the process.
                os.posix_fallocate(file.fileno(), 0, 8 * (HEADER + ROOM))
                self._mapped = mmap.mmap(
                    file.fileno(), 0, **({"trackfd": False} if sys.version_info >= (3, 13) else {})
                )
            # A descriptor alone: a file that is open at the end is a warning in the user's log.
            with open_private(rows, "ab") as file:
                self._rows = os.dup(file.fileno())
        self._numbers: dict[str, int] = {}
        self._count = 0  # of rows
        self.words = memoryview(self._mapped).cast("Q")
        self.words[0] = MARK

    def text(self, text: str) -> int:
        """The number of a text; 0 of those that come too late to be kept."""
        number = self._numbers.get(text)
        if number is None:
            number = self.row(text=mask_text(text) if "'" in text or '"' in text else text)
            if number:
                self._numbers[text] = number
        return number

    def row(self, **row: object) -> int:
        """The number of a new row; 0 where there are too many."""
        if self._count >= MOST_ROWS:
            return 0
        self._count += 1
        # One write: a process that is forked meanwhile has nothing of it in a buffer.
        text = json.dumps({"number": self._count, **row}) + "\n"
        os.write(self._rows, text.encode("utf-8", "surrogateescape"))
        return self._count

    def turn_bank(self, count: int) -> int:
        """A new bank begins with the word of that number; the number with which it is full."""
        self.words[3], self.words[2] = self.words[2], count
        return count + BANK
