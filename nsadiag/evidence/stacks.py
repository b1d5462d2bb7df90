"""Stacks of one capture, as py-spy's JSON has them: by py-spy, or by faulthandler where it may not look.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from nsadiag.evidence.blocking import lets_go
from nsadiag.evidence.documents.captures import Gap
from nsadiag.evidence.documents.files import tail_of
from nsadiag.evidence.documents.kernel import NO_PROCESS, KernelProcess
from nsadiag.evidence.documents.python_stacks import (
    AUTOGRAD,
    MAIN_THREAD,
    PythonThread,
    StackFrame,
    Threads,
    as_one_stack,
    runs_backward,
)
from nsadiag.evidence.documents.types import Unfit, read_rows, read_value
from nsadiag.evidence.layout import CaptureDir

FAULT_THREAD = re.compile(
    r"^(?:\[[^\]]*\]:? ?)?(?P<current>Current thread|Thread) (?P<id>0x[0-9a-fA-F]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
FAULT_FRAME = re.compile(
    r'^(?:\[[^\]]*\]:? ?)?  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$'
)
MOST_BYTES = 4 * 1024 * 1024


def stacks_in(capture: CaptureDir, gaps: list[Unfit] | None = None) -> Threads:
    """All threads; empty where neither py-spy nor faulthandler could show them.

    A main thread that waits for a backward on a GPU goes on with the frames of the thread that runs it.
    """
    process = read_value(KernelProcess, capture.proc) or NO_PROCESS
    return as_one_stack(_threads(capture, gaps), process.name_of)


def process_in(capture: CaptureDir, gaps: list[Unfit] | None = None) -> KernelProcess | None:
    """The kernel's view of the process, and of the thread that `stacks_in` shows as its main one."""
    process = read_value(KernelProcess, capture.proc, gaps)
    if process is None or not any(thread.name.startswith(AUTOGRAD) for thread in process.threads):
        return process
    within = runs_backward(_threads(capture), process.name_of)
    return process.seen_from(within.os_thread_id or 0) if within else process


def _threads(capture: CaptureDir, gaps: list[Unfit] | None = None) -> Threads:
    threads = read_rows(PythonThread, capture.py_spy, gaps)
    if threads:
        return threads
    text = tail_of(capture.traceback, MOST_BYTES)
    return _filled_in(from_faulthandler(text), capture)


def _filled_in(threads: Threads, capture: CaptureDir) -> Threads:
    """With what faulthandler does not say: the main thread's number, and who has the GIL.

    Where Python was asked and did not answer, somebody keeps it: the only thread that is in no wait which lets go of it.
    """
    silent = any(row.capture == "python" for row in read_rows(Gap, capture.gaps))
    keepers = [t for t in threads if not lets_go(t.frames[0].filename)] if silent else []
    process = read_value(KernelProcess, capture.proc) or NO_PROCESS
    return tuple(
        dataclasses.replace(
            thread,
            os_thread_id=process.pid if thread.is_main else 0,
            owns_gil=len(keepers) == 1 and thread is keepers[0],
        )
        for thread in threads
    )


def from_faulthandler(text: str) -> Threads:
    """The stacks of its last dump of all threads; it lists the main thread last."""
    runs: list[list[tuple[str | None, list[StackFrame]]]] = [[]]
    inside = False
    for line in text.splitlines():
        thread, frame = FAULT_THREAD.match(line), FAULT_FRAME.match(line)
        if thread:
            runs[-1].append((thread["name"], []))
            inside = True
        elif frame and inside:
            number = frame["line"]
            line_number = int(number) if number.isdigit() else 0
            runs[-1][-1][1].append(StackFrame(name=frame["name"], filename=frame["file"], line=line_number))
        elif line.strip() and inside and not frame:
            # Something else between two times.
            runs.append([])
            inside = False
    whole = (
        [PythonThread(thread_name=name, frames=tuple(frames)) for name, frames in run if frames]
        for run in reversed(runs)
    )
    return with_a_main_thread(next(filter(None, whole), []))


def with_a_main_thread(threads: Sequence[PythonThread]) -> Threads:
    """Named so where nobody did: the one that began in a module, else the last."""
    if not threads or any(thread.is_main for thread in threads):
        return tuple(threads)
    begun = [t for t in threads if t.frames and t.frames[-1].name == "<module>"]
    main = (begun or threads)[-1]
    return tuple(dataclasses.replace(t, thread_name=MAIN_THREAD) if t is main else t for t in threads)
