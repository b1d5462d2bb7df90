"""Stacks of Python's threads, as py-spy has them: py_spy.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from nsadiag.evidence.documents.values import Pid

MAIN_THREAD = "MainThread"
ENGINE = "_engine_run_backward"  # of torch/autograd/graph.py
AUTOGRAD = "pt_autograd"  # the kernel's name for a thread in which torch runs a backward on a GPU


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
    works: bool | None = None  # for the rank, in the main thread's place; None where the main one does

    @property
    def is_main(self) -> bool:
        """Whether it is Python's main thread, or the one that does its work."""
        return self.thread_name == MAIN_THREAD if self.works is None else self.works

    @property
    def title(self) -> str:
        """`thread uploader`; faulthandler does not say what a thread is called."""
        return f"thread {self.thread_name}" if self.thread_name else "an unnamed thread"

    @property
    def lines(self) -> list[tuple[str, int]]:
        """File and line of each frame."""
        return [(frame.filename, frame.line) for frame in self.frames]


NO_THREAD = PythonThread(frames=())
Threads = tuple[PythonThread, ...]


def frames_of_main(threads: Iterable[PythonThread]) -> tuple[StackFrame, ...]:
    """The main thread's frames; none where it is not shown."""
    return next((thread.frames for thread in threads if thread.is_main), ())


def runs_backward(threads: Threads, name_of: Callable[[int], str]) -> PythonThread | None:
    """The thread in which the backward runs that the main thread waits for; None on a CPU, where that is the main thread.

    `name_of` tells the kernel's name of a thread.
    """
    frames = frames_of_main(threads)
    if not frames or frames[0].name != ENGINE:
        return None
    found = [t for t in threads if t.frames and name_of(t.os_thread_id or 0).startswith(AUTOGRAD)]
    return next((t for t in found if t.active), found[0] if found else None)


def as_one_stack(threads: Threads, name_of: Callable[[int], str]) -> Threads:
    """The threads, the main one continued by the one that runs its backward: on a GPU it is read as on a CPU."""
    within = runs_backward(threads, name_of)
    if within is None:
        return threads
    return tuple(
        continued(thread, within) if thread.is_main else thread for thread in threads if thread is not within
    )


def continued(main: PythonThread, within: PythonThread) -> PythonThread:
    """The main thread with the frames of the one that goes on with its call."""
    return replace(
        main,
        frames=(*within.frames, *main.frames),
        active=main.active or within.active,
        owns_gil=main.owns_gil or within.owns_gil,
    )
