"""Gives each rank log files of its own, without stealing a redirection that the user asked for."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

from nsadiag.evidence.layout import RankDir, make_private_dir

# The file that the agent gave to the launcher; only a descriptor that leads there is replaced.
STDOUT_ID, STDERR_ID = "NSADIAG_STDOUT_ID", "NSADIAG_STDERR_ID"


def file_id(descriptor: int) -> str:
    """Device and inode behind a descriptor: equal in every process that inherited it."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def take_over(directory: RankDir) -> dict[str, str]:
    """Points descriptors 1 and 2 at the rank's own files where they led to the agent; says where each goes now."""
    logs = {}
    for name, descriptor, path, mark in (
        ("stdout", 1, directory.stdout, STDOUT_ID),
        ("stderr", 2, directory.stderr, STDERR_ID),
    ):
        try:
            if file_id(descriptor) == os.environ.get(mark):
                _redirect(descriptor, str(path))
                setattr(sys, name, _outliving_a_full_disk(getattr(sys, name), descriptor))
            logs[name] = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        except OSError:
            logs[name] = "closed"
    # A file makes Python buffer whole blocks, and a rank that hangs would keep its last lines to itself.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    return logs


def redirect_to_files(directory: RankDir) -> None:
    """Both streams to the rank's own files, for ranks that have no launcher's output to begin with."""
    make_private_dir(directory.path)
    _redirect(1, str(directory.stdout))
    _redirect(2, str(directory.stderr))


class _Forgiving(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return len(data)


def _outliving_a_full_disk(stream: Any, descriptor: int) -> Any:
    """The same stream, losing what finds no room: it was us who pointed it at a disk, so print() must not raise."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    stream.flush()
    raw = _Forgiving(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=stream.write_through,
    )


def _redirect(descriptor: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, descriptor)
    os.close(file)
