"""Passes on what is appended to log files, as `tail -f` does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Files = Callable[[], dict[Path, BinaryIO]]


class Follow:
    """Copies files' growth to streams, from a thread, until closed; `files` is asked anew each time."""

    def __init__(self, files: Files, interval_s: float = 0.1) -> None:
        self._files, self._interval_s = files, interval_s
        self._offsets: dict[Path, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsadiag-follow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.copy()

    def copy(self) -> None:
        """Copies what is new, once."""
        for path, sink in self._files().items():
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
                self._offsets[path] = file.tell()
                if data:
                    sink.write(data)
                    sink.flush()

    def close(self) -> None:
        """Copies the rest and ends the thread."""
        self._stop.set()
        self._thread.join()
        self.copy()
