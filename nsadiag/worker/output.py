"""Gives each rank log files of its own, without stealing a redirection that the user asked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nsadiag.evidence.layout import RankDir, make_private_dir

# The inode of the pipe that the agent gave to the launcher; only that one is replaced by a file.
STDOUT_ID, STDERR_ID = "NSADIAG_STDOUT_ID", "NSADIAG_STDERR_ID"


def pipe_id(descriptor: int) -> str:
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
            if pipe_id(descriptor) == os.environ.get(mark):
                _redirect(descriptor, str(path))
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


def _redirect(descriptor: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, descriptor)
    os.close(file)
