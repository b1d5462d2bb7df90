"""Stacks of Python's threads, as py-spy has them: py_spy.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nsadiag.evidence.documents.values import Pid

MAIN_THREAD = "MainThread"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A local variable as py-spy shows it."""

    name: str
    repr: str | None = None
    arg: bool = False


@dataclass(frozen=True, kw_only=True)
class StackFrame:
    """One function that has not returned."""

    name: str
    filename: str
    line: int
    locals: tuple[Variable, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PythonThread:
    """One thread, its frames innermost first."""

    frames: tuple[StackFrame, ...]
    pid: Pid | None = None
    thread_id: int | None = None  # pthreads'
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False

    @property
    def is_main(self) -> bool:
        """Whether it is Python's main thread."""
        return self.thread_name == MAIN_THREAD

    @property
    def lines(self) -> list[tuple[str, int]]:
        """File and line of each frame."""
        return [(frame.filename, frame.line) for frame in self.frames]


NO_THREAD = PythonThread(frames=())
Threads = tuple[PythonThread, ...]


def frames_of_main(threads: Iterable[PythonThread]) -> tuple[StackFrame, ...]:
    """The main thread's frames; none where it is not shown."""
    return next((thread.frames for thread in threads if thread.is_main), ())
