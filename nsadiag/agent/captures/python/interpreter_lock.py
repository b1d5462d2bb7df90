"""A test of the interpreter lock: does a rank's Python run at all, where one thread seems to keep the lock to itself?

py-spy shows the lines of Python code, and a loop around a quick call may show one and the same line whenever it is looked
at. What answers in Python then has got the lock in between: no single call keeps it.
"""

from __future__ import annotations

from nsadiag.agent.captures.target import NotApplicable, Target
from nsadiag.evidence.documents.captures import Gap
from nsadiag.evidence.documents.kernel import NO_PROCESS
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import PYTHON_HANDLER, CaptureDir, RankDir
from nsadiag.evidence.stacks import process_in, stacks_in

TIMEOUT_S = 2.0  # many times what a call takes that seems quick to a person


def python(target: Target) -> None:
    """Asks for an answer in Python, where one line seems to keep the GIL to itself (in answers.json).

    Also where py-spy may not say who has it, and nothing moves. Asked once, and again where it has answered: each question that gets no answer costs the rank a thread of its server.
    """
    rank, number = RankDir(path=target.directory.path.parents[1]), target.directory.number
    before = rank.capture(number - 1)
    if target.directory.py_spy.exists():
        owner, earlier = _owner(target.directory), _owner(before)
        if owner is None or earlier is None or _at(owner) != _at(earlier):
            raise NotApplicable(
                "no thread held the interpreter lock at the same lines in the previous snapshot"
            )
        if _state(target.directory, owner.os_thread_id) != "R":
            raise NotApplicable("who holds the interpreter lock sleeps: nobody else gets it")
    elif not before.path.exists() or _lines(target.directory) != _lines(before):
        raise NotApplicable("the main thread was at other lines in the previous snapshot")
    if any(gap.capture == "python" for look in rank.captures() for gap in read_rows(Gap, look.gaps)):
        raise NotApplicable("it was asked before, and did not answer")
    target.server.ask_json(PYTHON_HANDLER, TIMEOUT_S)


def _owner(directory: CaptureDir) -> PythonThread | None:
    return next((t for t in read_rows(PythonThread, directory.py_spy) if t.owns_gil), None)


def _at(thread: PythonThread) -> tuple[int | None, list[tuple[str, int]]]:
    return thread.os_thread_id, thread.lines


def _lines(directory: CaptureDir) -> list[tuple[str, int]] | None:
    """The main thread's; None where nobody could see its stack."""
    return next((thread.lines for thread in stacks_in(directory) if thread.is_main), None)


def _state(directory: CaptureDir, thread: int | None) -> str | None:
    """The kernel's word for what that thread does."""
    process = process_in(directory) or NO_PROCESS
    return next((each.state for each in process.threads if each.tid == thread), None)
