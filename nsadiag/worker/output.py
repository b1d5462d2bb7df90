"""Gives each rank log files of its own, without stealing a redirection that the user asked for."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.replacement import leave_no_frame

if TYPE_CHECKING:
    from nsadiag.evidence.layout import RankDir

# The file that the agent gave to the launcher; only a descriptor that leads there is replaced.
STDOUT_ID, STDERR_ID = "NSADIAG_STDOUT_ID", "NSADIAG_STDERR_ID"
# What a terminal or a pipe would not have answered: no room, a disk that is gone, a network's that takes rights or has no memory.
OURS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EROFS,
    errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT,
}  # fmt: skip
MOST_PARTS = 100  # of a log whose writer may write small files alone
_our_files: set[str] = set()  # that a descriptor was pointed at; the user may point it elsewhere


def file_id(descriptor: int) -> str:
    """Device and inode behind a descriptor: equal in every process that inherited it."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def forgive() -> None:
    """In any process of the job: has print() survive that the agent's files find no room."""
    for name, descriptor, mark in (("stdout", 1, STDOUT_ID), ("stderr", 2, STDERR_ID)):
        with tolerated(OSError, ValueError):
            if file_id(descriptor) == os.environ.get(mark):
                _our_files.add(file_id(descriptor))
                _replace_stream(name)


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
                stream = getattr(sys, name)
                if hasattr(stream, "reconfigure") and not stream.write_through:
                    # A file makes Python buffer whole blocks, and a rank that hangs would keep its last lines to itself.
                    stream.reconfigure(line_buffering=True)
            logs[name] = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - text is wanted
        except OSError as error:
            pass_on(error)
            logs[name] = "closed"
    return logs


def redirect_to_files(directory: RankDir) -> None:
    """Both streams to the rank's own files, for ranks that have no launcher's output to begin with."""
    from nsadiag.evidence.layout import make_private_dir

    make_private_dir(directory.path)
    _redirect(1, str(directory.stdout))
    _redirect(2, str(directory.stderr))


_plain_write = io.FileIO.write


class _Forgiving(io.FileIO):
    """Loses what finds no room or no disk: it was us who pointed the stream at one, so print() must not raise.

    RLIMIT_FSIZE is the job's own, and would not have bounded a pipe: there the log goes on in a file of its own.
    """

    def write(self, data: Any, /) -> int:
        # For each line that is printed, and twice where nothing is buffered: without `super()`, and asking little.
        try:
            written = _plain_write(self, data)
            kind = type(data)  # a buffered writer's is a view of bytes
            if (kind is bytes or (kind is memoryview and data.itemsize == 1)) and written == len(data):
                return written
            size = memoryview(data).nbytes
        except OSError as error:
            if error.errno not in OURS or not self._is_ours():
                leave_no_frame(error)
                raise
            size = memoryview(data).nbytes
            written = self._write_elsewhere(data) if error.errno == errno.EFBIG else size
        # A pipe takes all: where nothing is buffered, nobody asks again for the rest.
        if written and written < size and self._is_ours():
            return written + self.write(memoryview(data).cast("B")[written:])
        return written

    def _is_ours(self) -> bool:
        return file_id(self.fileno()) in _our_files

    def _write_elsewhere(self, data: Any) -> int:
        try:
            _begin_next_part(self.fileno())
            return super().write(data)
        except OSError as error:
            pass_on(error)
            return memoryview(data).nbytes


# As a stream of Python's own says when it is asked for its kind.
_Forgiving.__name__ = _Forgiving.__qualname__ = io.FileIO.__name__
_Forgiving.__module__ = io.FileIO.__module__


def _replace_stream(name: str) -> None:
    """By one that is like it, and forgives; what else the user put there stays as it is."""
    stream, first = getattr(sys, name), getattr(sys, f"__{name}__")
    if type(stream) is not io.TextIOWrapper or stream.fileno() not in (1, 2):
        return
    stream.flush()
    ours = _forgiving(stream)
    setattr(sys, name, ours)
    if first is stream:
        setattr(sys, f"__{name}__", ours)


def _forgiving(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Forgiving(stream.fileno(), "w", closefd=False)
    raw.name = stream.name
    buffered = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)
    ours = io.TextIOWrapper(
        buffered,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    ours.mode = "w"  # type: ignore[misc]
    return ours


def _redirect(descriptor: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    _our_files.add(file_id(file))
    os.dup2(file, descriptor)
    os.close(file)


def _begin_next_part(descriptor: int) -> None:
    """Sets the full log behind `descriptor` aside, and goes on in a new one of its name. Raises OSError."""
    from pathlib import Path

    from nsadiag.evidence.layout import log_of, part_of, parts_of

    full = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - as in take_over
    log = log_of(full)
    if full != log:  # another process with the same log was here before
        _redirect(descriptor, str(log))
        return
    number = len(parts_of(log))
    if number > MOST_PARTS:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    new = log.with_name(f".{log.name}.{os.getpid()}")
    os.link(full, part_of(log, number))
    _redirect(descriptor, str(new))
    new.replace(log)
