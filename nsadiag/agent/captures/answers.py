"""The endpoints of a rank that answered and those that kept silent: the silence of some is evidence too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nsadiag.evidence.documents.captures import GilOwner
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.documents.types import read_rows, read_value
from nsadiag.evidence.layout import CaptureDir

FROM_WITHIN = ("fr", "traceback", "counters")  # captures that the rank itself answers


def gil_owner(directory: CaptureDir) -> GilOwner | None:
    """The thread that owned the GIL when py-spy looked, with its innermost frame; None if it was free."""
    thread = next((t for t in read_rows(PythonThread, directory.py_spy) if t.owns_gil), None)
    if thread is None:
        return None
    frame = next(iter(thread.frames), None)
    return GilOwner(
        thread=thread.thread_name,
        os_thread_id=thread.os_thread_id,
        function=frame.name if frame else None,
        file=frame.filename if frame else None,
        line=frame.line if frame else None,
    )


def summed_up(directory: CaptureDir, sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """answers.json: each source's answer, who owns the GIL, the state, and what these say together."""
    process, owner = read_value(KernelProcess, directory.proc), gil_owner(directory)
    state = process.state if process else None
    return {
        "sources": sources,
        "state": state,
        "gil_known": directory.py_spy.exists(),
        "gil_owner": asdict(owner) if owner else None,
        "reads_as": _reading(state, owner, [sources[n]["answered"] for n in FROM_WITHIN if n in sources]),
    }


def _reading(state: str | None, owner: GilOwner | None, from_within: list[bool]) -> str:
    """One word. A rank that computes owns its GIL now and then; one that owns it in every look holds it."""
    if state in ("T", "t"):
        return "stopped"
    if state == "D" and not any(from_within):
        return "in_kernel"
    if owner is not None:
        return "gil_owned"
    if any(from_within):
        return "answers"
    return "silent" if from_within else "unknown"
