"""NCCL's own flight recorder, by the pipe that the job's environment names: the way in without a worker server."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.processes import environment
from nsadiag.evidence import pickles
from nsadiag.evidence.layout import CaptureDir, write_json
from nsadiag.evidence.ownership import opened

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_FILE = "/tmp/nccl_trace_rank_"
ANSWER_S = 10.0
QUIET_S = 0.3
MAX_DUMP = 256 * 2**20


def dump_by_pipe(pid: int, rank: int, directory: CaptureDir) -> None:
    """fr.json, from the pickle that the rank writes when its pipe is written to.

    Does nothing where the environment names no pipe. Raises CaptureError if no dump comes, or none that is data only.
    """
    named = environment(pid, (PIPE, *FILES))
    if PIPE not in named:
        return
    file = Path(f"{next((named[name] for name in FILES if name in named), DEFAULT_FILE)}{rank}")
    owners = {os.geteuid(), Path(f"/proc/{pid}").stat().st_uid}
    before = _stamp(file)
    _ring(Path(f"{named[PIPE]}{rank}.pipe"), owners)
    write_json(directory.flight_recorder, plain(_dumped(file, before, owners)))


def _ring(pipe: Path, owners: set[int]) -> None:
    try:
        # Without waiting for a reader: a rank that has not yet made its communicator does not listen.
        handle = opened(pipe, os.O_WRONLY, stat.S_ISFIFO, owners)
    except OSError as error:
        raise CaptureError(f"{pipe}: {error.strerror}") from None
    try:
        os.write(handle, b"1\n")
    finally:
        os.close(handle)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _dumped(file: Path, before: tuple[int, int], owners: set[int]) -> bytes:
    """The file's bytes once they are new and grow no more. Both names are easily guessed, and lie in /tmp as a rule."""
    deadline, last, since = time.monotonic() + ANSWER_S, before, time.monotonic()
    while time.monotonic() < deadline:
        now = _stamp(file)
        if now != last:
            last, since = now, time.monotonic()
        elif now != before and time.monotonic() - since > QUIET_S:
            try:
                handle = opened(file, os.O_RDONLY, stat.S_ISREG, owners)
            except OSError as error:
                raise CaptureError(f"{file}: {error.strerror}") from None
            with os.fdopen(handle, "rb") as dump:
                return dump.read(MAX_DUMP)
        time.sleep(0.02)
    raise CaptureError(f"{file}: no dump within {ANSWER_S:g} s")


def plain(raw: bytes) -> Any:
    """The pickled document. Raises CaptureError if it is no pickle, or more than data."""
    try:
        return pickles.loads(raw)
    except pickles.PickleRefused as error:
        raise CaptureError(f"the dump cannot be read: {error}") from None
