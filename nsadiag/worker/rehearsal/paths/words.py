"""The file of words, and the rows of the texts that they name."""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

from nsadiag.evidence.layout import open_private
from nsadiag.evidence.rehearsal.paths import HEADER, KEPT, MARK, MOST_WORDS, NUMBER
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.worker.descriptors import opened_high

MOST_TEXTS = 1 << 15


class Words:
    """Writes words without a system call; a text is written once, when it is first named."""

    def __init__(self, words: Path, texts: Path) -> None:
        with opened_high():
            with open_private(words, "w+b") as file:
                # Touching a page of a sparse file on a full disk kills the process.
                os.posix_fallocate(file.fileno(), 0, 8 * (HEADER + MOST_WORDS))
                self._mapped = mmap.mmap(
                    file.fileno(), 0, **({"trackfd": False} if sys.version_info >= (3, 13) else {})
                )
            self._rows = open_private(texts, "a")
        self._numbers: dict[str, int] = {}
        view = memoryview(self._mapped).cast("Q")
        view[0] = MARK
        self.put = _writer(view)

    def number_of(self, text: str) -> int:
        """The number of a text; 0 of those that come too late to be kept."""
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MOST_TEXTS:
                return 0
            number = self._numbers[text] = len(self._numbers) + 1
            self._write({"number": number, "text": mask_text(text) if "'" in text or '"' in text else text})
        return number

    def number_of_code(self, name: str, file: str, line: int) -> int:
        """The number of a code object; each has one of its own."""
        number = self._numbers[f"\0{file}:{line}:{name}"] = len(self._numbers) + 1
        self._write({"number": number, "text": name, "file": file, "line": line})
        return number

    def _write(self, row: dict[str, object]) -> None:
        self._rows.write(json.dumps(row) + "\n")
        self._rows.flush()


def _writer(view: memoryview) -> Callable[[int, int, int], None]:
    count = 0

    def put(what: int, number: int, low: int) -> None:
        nonlocal count
        at = count if count < MOST_WORDS else KEPT + (count - KEPT) % (MOST_WORDS - KEPT)
        view[HEADER + at] = what | number << NUMBER | low
        count += 1
        view[1] = count

    return put
