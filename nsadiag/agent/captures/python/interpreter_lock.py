"""A test of the interpreter lock: does a rank's Python run at all, where one thread seems to keep the lock to itself?

py-spy shows the lines of Python code, and a loop around a quick call may show one and the same line whenever it is looked
at. What answers in Python then has got the lock in between: no single call keeps it.
"""

from __future__ import annotations

from typing import Any

from nsadiag.agent.captures.target import NotApplicable, Target
from nsadiag.evidence.layout import PYTHON_HANDLER, CaptureDir, RankDir, read_json
from nsadiag.evidence.stacks import stacks_in

TIMEOUT_S = 2.0  # many times what a call takes that seems quick to a person


def python(target: Target) -> None:
    """Asks for an answer in Python, where one line seems to keep the GIL to itself (in answers.json).

    Also where py-spy may not say who has it, and nothing moves. Asked once, and again where it has answered: each question that gets no answer costs the rank a thread of its server.
    """
    rank, number = RankDir(path=target.directory.path.parents[1]), target.directory.number
    before = rank.capture(number - 1)
    if target.directory.py_spy.exists():
        owner = _owner(target.directory)
        if owner is None or owner != _owner(before):
            raise NotApplicable(
                "no thread held the interpreter lock at the same lines in the previous snapshot"
            )
        if _state(target.directory, owner[0]) != "R":
            raise NotApplicable("who holds the interpreter lock sleeps: nobody else gets it")
    elif not before.path.exists() or _lines(target.directory) != _lines(before):
        raise NotApplicable("the main thread was at other lines in the previous snapshot")
    if any(gap["capture"] == "python" for look in rank.captures() for gap in read_json(look.gaps, [])):
        raise NotApplicable("it was asked before, and did not answer")
    target.server.ask_json(PYTHON_HANDLER, TIMEOUT_S)


def _owner(directory: CaptureDir) -> Any:
    return next(
        (
            (thread.get("os_thread_id"), [(frame["filename"], frame["line"]) for frame in thread["frames"]])
            for thread in read_json(directory.py_spy, [])
            if thread.get("owns_gil")
        ),
        None,
    )


def _lines(directory: CaptureDir) -> Any:
    """The main thread's; None where nobody could see its stack."""
    threads = (t for t in stacks_in(directory) if t["thread_name"] == "MainThread")
    return next(([(frame["filename"], frame["line"]) for frame in t["frames"]] for t in threads), None)


def _state(directory: CaptureDir, thread: Any) -> str | None:
    """The kernel's word for what that thread does."""
    threads = read_json(directory.proc, {}).get("threads", [])
    return next((str(each["state"]) for each in threads if each.get("tid") == thread), None)
