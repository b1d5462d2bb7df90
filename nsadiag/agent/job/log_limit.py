"""Keeps the first and the last part of each log (`--log-limit`), while the job goes on writing to it.

Who writes cannot be asked to write elsewhere, and must not notice. So the middle becomes a hole: the file keeps its
length, and takes no room. When nobody writes any more, the two parts are put together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nsadiag.evidence.layout import open_private

PUNCH_HOLE_KEEP_SIZE = 2 | 1
BLOCK = 4096
INTERVAL_S = 0.5
AT_ONCE = 1 << 20


@contextlib.contextmanager
def limited(files: Callable[[], Iterable[Path]], limit_mib: float) -> Iterator[None]:
    """While the block lasts; `files` is asked anew each time. 0: without a limit."""
    if not limit_mib:
        yield
        return
    ending, half = threading.Event(), int(limit_mib * 2**20 / 2)

    def run() -> None:
        while not ending.wait(INTERVAL_S):
            for path in files():
                with contextlib.suppress(OSError):
                    punch(path, half)

    thread = threading.Thread(target=run, name="nsadiag-log-limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def punch(path: Path, half: int) -> None:
    """Leaves `half` bytes at either end. Raises OSError where the file system knows no holes."""
    status = path.stat()
    if status.st_blocks * 512 <= 2 * half + 2 * BLOCK:
        return
    start, end = -(-half // BLOCK) * BLOCK, (status.st_size - half) // BLOCK * BLOCK
    if end <= start:
        return
    with path.open("r+b", buffering=0) as file:
        number = ctypes.c_int(file.fileno())
        done = _libc.fallocate64(
            number, PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(end - start)
        )
        if done != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def close_holes(files: Iterable[Path]) -> None:
    """Puts together what is left of each file, with a line that says how much is not."""
    for path in files:
        with contextlib.suppress(OSError):
            _close_hole(path)


def _close_hole(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = os.lseek(file.fileno(), 0, os.SEEK_HOLE) if size else size
        if start >= size:
            return
        end = os.lseek(file.fileno(), start, os.SEEK_DATA)
        whole = path.with_name(f".{path.name}.{os.getpid()}")
        with open_private(whole, "wb") as copy:
            _copy(file.fileno(), copy.fileno(), 0, start)
            copy.write(f"\n[nsadiag: {(end - start) / 2**20:.0f} MiB left out: --log-limit]\n".encode())
            copy.flush()
            _copy(file.fileno(), copy.fileno(), end, size)
    whole.replace(path)


def _copy(source: int, target: int, start: int, end: int) -> None:
    os.lseek(source, start, os.SEEK_SET)
    while start < end:
        data = os.read(source, min(AT_ONCE, end - start))
        if not data:
            return
        start += len(data)
        while data:
            data = data[os.write(target, data) :]


_libc = ctypes.CDLL(None, use_errno=True)
