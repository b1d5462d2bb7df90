"""Keys typed at a terminal, one at a time, without Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

NAMED = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "k": "up",
    "j": "down",
    " ": "page down",
}
MOST_BYTES = 32


class Keys:
    """Keys since the last time; none where stdin is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._file = descriptor

    def wait(self, seconds: float) -> str:
        """The next key, by its letter or the name in NAMED; empty where none came."""
        if self._file is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(self._file, MOST_BYTES).decode(errors="replace")
        return NAMED.get(typed, typed[:1])


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Within the block the terminal hands on each key at once, and Ctrl-C as ever; afterwards it is as it was."""
    try:
        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
    except (OSError, ValueError, AttributeError, termios.error):
        yield Keys(None)
        return
    tty.setcbreak(file)
    try:
        yield Keys(file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
