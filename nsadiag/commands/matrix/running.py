"""The owner of a matrix directory: a second nsadiag keeps away, and a successor ends the processes that a killed one left."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import FILE_MODE, RunDir, append_json_line, read_json_lines

SWEEPS = 3


class Running:
    """Holds a lock on running.jsonl, which the kernel gives back even after SIGKILL, and lists the launchers in it."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.path / "running.jsonl"
        self._lock: int | None = None

    def take(self) -> int:
        """Makes the directory ours, and ends what a killed predecessor left; says how many processes that were.

        Raises UsageError while someone runs it, and MachineError where something of it does not end.
        """
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise _refusal(self._path) from None
        except OSError:
            pass  # a file system that knows no locks: then the processes' mark must do
        ended = _end_leftovers(self._path)
        os.ftruncate(self._lock, 0)
        append_json_line(self._path, {"pid": os.getpid(), "host": platform.node()})
        return ended

    def launcher_starts(self, run_id: str) -> None:
        """To be called before it does: from its first instant its processes can be found."""
        append_json_line(self._path, {"launcher": run_id})

    def release(self) -> None:
        """Nothing of ours runs any more."""
        self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _refusal(path: Path) -> UsageError:
    about = _first(path)
    by = f"process {about['pid']} on {about['host']}" if about else "another process"
    return UsageError(
        f"{path.parent} is being run by {by}", "wait for it, or interrupt it; then go on with --resume"
    )


def _first(path: Path) -> dict[str, object]:
    rows = [row for row in read_json_lines(path) if isinstance(row, dict) and "pid" in row]
    return rows[0] if rows else {}


def _end_leftovers(path: Path) -> int:
    """Processes that carry the mark of a launcher in the list, ended; those on another host cannot be seen from here."""
    about = _first(path)
    if about and about["host"] != platform.node():
        raise UsageError(
            f"{path.parent} was last run on {about['host']} and not ended there",
            f"go on there; or, if nothing of it runs any more, remove {path}",
        )
    ids = [
        str(row["launcher"]) for row in read_json_lines(path) if isinstance(row, dict) and "launcher" in row
    ]
    ended: set[processes.Process] = set()
    for _ in range(SWEEPS):
        found = {process for run_id in ids for process in processes.of_run(run_id)}
        if not found:
            return len(ended)
        ended |= processes.with_children(found)
        processes.end(ended)
    left = sorted(process.pid for process in found if processes.is_alive(process))
    if left:
        raise MachineError(
            f"process {left[0]} of the matrix that was killed does not end, not even by SIGKILL",
            "it waits in the kernel (state D), mostly for a disk or a GPU: go on when it is gone",
        )
    return len(ended)
