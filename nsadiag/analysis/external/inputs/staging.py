"""Private folders for what is unpacked, or comes from standard input; they are removed with the process at the latest."""

from __future__ import annotations

import collections
import os
import sys
import tempfile
from pathlib import Path
from typing import IO

CHUNK_BYTES = 2**20
MOST_BYTES = 8 * 2**30  # of standard input
MOST_KEPT = 8  # folders: one for each time that evidence is read

_newest: collections.deque[tempfile.TemporaryDirectory[str]] = collections.deque()
_of_stdin: list[tempfile.TemporaryDirectory[str]] = []


class Staging:
    """A folder that is made when something is put into it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._count = 0

    def new(self) -> Path:
        """A new empty folder in it. Raises OSError."""
        if self._folder is None:
            self._folder = _new()
        self._count += 1
        place = self._folder / str(self._count)
        place.mkdir()
        return place


def _new() -> Path:
    while len(_newest) >= MOST_KEPT:
        _newest.popleft().cleanup()
    _newest.append(_temporary())
    return Path(_newest[-1].name)


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nsadiag-evidence-", ignore_cleanup_errors=True)


def stdin() -> Path:
    """A file with all of standard input: there is one, and it is read more than once. Raises OSError."""
    if not _of_stdin:
        _of_stdin.append(_temporary())
        copy(sys.stdin.buffer, Path(_of_stdin[0].name) / "stdin", MOST_BYTES)
        os.utime(Path(_of_stdin[0].name) / "stdin", (0, 0))  # nobody knows when it was written
    return Path(_of_stdin[0].name) / "stdin"


def copy(source: IO[bytes], place: Path, most: int) -> None:
    """So many bytes at most. Raises OSError."""
    with place.open("xb") as file:
        while most > 0 and (chunk := source.read(min(CHUNK_BYTES, most))):
            file.write(chunk)
            most -= len(chunk)
