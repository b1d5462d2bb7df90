"""A call into C keeps the interpreter lock: no Python thread of that rank can run, least of all one that would help it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.analysis import places
from nsadiag.analysis.inside import Stuck, finding, inside
from nsadiag.analysis.load import CaptureEvidence, CellEvidence
from nsadiag.analysis.silence import in_one_place_s, python_answered, python_silent
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import is_still, was_given_up
from nsadiag.evidence.records import Evidence, Finding, Place, Rejected

FIX = "Release the interpreter lock around the call (pybind11: gil_scoped_release; ctypes: CDLL, not PyDLL), or bound what it is given."


def _owner(capture: CaptureEvidence) -> dict[str, Any] | None:
    return next((t for t in capture.stacks if t.get("owns_gil")), None)


def _holds(stuck: Stuck) -> tuple[dict[str, Any], Place] | None:
    """The thread that owned the lock, at the same line, in the last two looks; and its innermost user line."""
    shown = [c for c in stuck.rank.captures if c.stacks][-2:]
    owners = [_owner(capture) for capture in shown]
    if len(shown) < 2 or owners[0] is None or owners[1] is None:
        return None
    if owners[0].get("os_thread_id") != owners[1].get("os_thread_id"):
        return None
    if [(f["filename"], f["line"]) for f in owners[0]["frames"]] != [
        (f["filename"], f["line"]) for f in owners[1]["frames"]
    ]:
        return None
    at = places.of_frames(owners[1]["frames"])
    return (owners[1], at) if at else None


def _state(stuck: Stuck, thread: dict[str, Any]) -> str | None:
    """The kernel's word for what that thread does."""
    threads = stuck.capture.proc.get("threads", [])
    found = next((t for t in threads if t.get("tid") == thread.get("os_thread_id")), None)
    return str(found["state"]) if found else None


def _about(stuck: Stuck, thread: dict[str, Any], at: Place) -> Evidence:
    return Evidence(
        claim=f"thread {thread.get('thread_name')} owns the interpreter lock at {places.short(at)} in both looks",
        source=f"{stuck.capture.source}/answers.json#gil_owner",
    )


def gil_held_native_call(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    for stuck in inside(cell, tables):
        held = _holds(stuck)
        if held is None:
            continue
        thread, at = held
        state = _state(stuck, thread)
        if is_still(cell) and state in ("S", "D"):
            yield _blocked(cell, stuck, thread, at)
        elif state == "R" and was_given_up(cell) and not python_answered(stuck.rank):
            lasted = in_one_place_s(cell, stuck.rank)
            if lasted:
                yield _busy(cell, stuck, thread, at, lasted)


def _blocked(cell: CellEvidence, stuck: Stuck, thread: dict[str, Any], at: Place) -> Finding:
    number = stuck.number
    return finding(
        cell,
        stuck,
        cls="gil_held_native_call",
        confidence=0.93,
        summary=f"Rank {number} sleeps in a native call at {places.short(at)} and keeps the interpreter lock: no Python thread of it can run.",
        at=at,
        evidence=(
            _about(stuck, thread, at),
            Evidence(
                claim=f"that thread sleeps in the kernel{f', in {stuck.standing.call}' if stuck.standing.call else ''}: a wait that should have released the lock",
                source=f"{stuck.capture.source}/proc.json",
            ),
        ),
        rejected=(
            Rejected(
                cls="local_lock_deadlock",
                because="Python's own locks and queues release the interpreter lock while they wait",
            ),
            Rejected(cls="livelock_user_code", because="nothing of the rank runs"),
        ),
        fix=FIX,
    )


def _busy(cell: CellEvidence, stuck: Stuck, thread: dict[str, Any], at: Place, lasted: float) -> Finding:
    number, silent = stuck.number, python_silent(stuck.rank)
    asked = (
        [Evidence(claim="no Python of the rank answered when it was asked", source=silent)] if silent else []
    )
    return finding(
        cell,
        stuck,
        cls="gil_held_native_call",
        confidence=0.75 if silent else 0.65,
        summary=f"Rank {number} has been in one native call at {places.short(at)} for {lasted:.0f} s, at full CPU and with the interpreter lock.",
        at=at,
        evidence=(
            _about(stuck, thread, at),
            *asked,
            Evidence(
                claim=f"the same call for {lasted:.0f} s; the longest pause of this job before was {cell.watch.get('longest_quiet_s', 0):.1f} s",
                source="watch.json",
            ),
        ),
        rejected=(
            Rejected(
                cls="livelock_user_code",
                because="its lines do not change: it is in C, not in a loop of Python",
            ),
            Rejected(
                cls="slow_compute", because="no event came of it for many times the longest pause before"
            ),
        ),
        fix=FIX,
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the call ever returns",
    )
