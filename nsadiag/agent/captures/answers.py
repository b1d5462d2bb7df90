"""The endpoints of a rank that answered and those that kept silent: the silence of some is evidence too."""

from __future__ import annotations

from typing import Any

from nsadiag.evidence.layout import CaptureDir, read_json


def gil_owner(directory: CaptureDir) -> dict[str, Any] | None:
    """The thread that owned the GIL when py-spy looked, with its innermost frame; None if it was free."""
    for thread in read_json(directory.py_spy, []):
        if thread.get("owns_gil"):
            frame: dict[str, Any] = next(iter(thread.get("frames") or []), {})
            return {
                "thread": thread.get("thread_name"),
                "os_thread_id": thread.get("os_thread_id"),
                "function": frame.get("name"),
                "file": frame.get("filename"),
                "line": frame.get("line"),
            }
    return None


def summed_up(directory: CaptureDir, sources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """answers.json: each source's answer, who owns the GIL, the state, and what these say together."""
    state = read_json(directory.proc, {}).get("state")
    owner = gil_owner(directory)
    return {
        "sources": sources,
        "state": state,
        "gil_known": directory.py_spy.exists(),
        "gil_owner": owner,
        "reads_as": _reading(state, owner, sources),
    }


def _reading(state: str | None, owner: dict[str, Any] | None, sources: dict[str, dict[str, Any]]) -> str:
    """One word. A rank that computes owns its GIL now and then; one that owns it in every look holds it."""
    from_within = [sources[n]["answered"] for n in ("fr", "traceback", "counters") if n in sources]
    if state in ("T", "t"):
        return "stopped"
    if state == "D" and not any(from_within):
        return "in_kernel"
    if owner is not None:
        return "gil_owned"
    if any(from_within):
        return "answers"
    return "silent" if from_within else "unknown"
