"""The thread of a process that does the rank's work, where a stack has several: the main one need not be it."""

from __future__ import annotations

from dataclasses import replace

from nsadiag.analysis.facts import locations
from nsadiag.evidence.documents.python_stacks import ENGINE, PythonThread, Threads, continued
from nsadiag.evidence.user_code import is_user

STARTED_IN_PYTHON = ("_bootstrap", "_bootstrap_inner")


def at_work(threads: Threads) -> Threads:
    """The threads, with the one that does the work as the main one.

    A main thread in a backward goes on with the frames of autograd's own thread, as on a CPU; one that only runs the loop
    of a server or of Ray stands behind the thread that is in a collective.
    """
    main = next((thread for thread in threads if thread.is_main), None)
    if main is None:
        return threads
    if _is_in_backward(main):
        return _with_backward(threads, main)
    return _with_worker(threads, main)


def _is_in_backward(thread: PythonThread) -> bool:
    """Whether it has handed the backward to autograd's threads: its innermost frame is the call."""
    inner = thread.frames[0] if thread.frames else None
    if inner is None:
        return False
    # Before torch 2.3 the call stood in `backward` itself.
    older = inner.name == "backward" and inner.filename.endswith("torch/autograd/__init__.py")
    return inner.name == ENGINE or older


def _with_backward(threads: Threads, main: PythonThread) -> Threads:
    """Autograd's threads are not started in Python: those have no name, and none of Python's own frames at their end."""
    found = [t for t in threads if t is not main and t.frames and _is_native(t)]
    within = next((t for t in found if locations.call_in(t.frames)), None)
    if within is None:
        return threads
    return tuple(continued(t, within) if t is main else t for t in threads if t is not within)


def _is_users(thread: PythonThread) -> bool:
    return any(is_user(frame.filename) for frame in thread.frames)


def _is_native(thread: PythonThread) -> bool:
    return not thread.thread_name and thread.frames[-1].name not in STARTED_IN_PYTHON


def _with_worker(threads: Threads, main: PythonThread) -> Threads:
    """The one other thread that is in a collective, else that has a line of the user's, where the main one has neither."""
    if locations.call_in(main.frames) or _is_users(main):
        return threads
    others = [thread for thread in threads if thread is not main]
    found = [t for t in others if locations.call_in(t.frames)] or [t for t in others if _is_users(t)]
    if len(found) != 1:
        return threads
    return tuple(replace(t, works=t is found[0]) if t in (main, found[0]) else t for t in threads)
