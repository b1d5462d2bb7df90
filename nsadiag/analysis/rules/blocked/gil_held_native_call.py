"""A native call that holds the GIL: no Python thread of that rank can run."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import in_one_place_s, python_answered, python_silent
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.records import Place, Strength


def gil_held_native_call(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        held = _held(blocked)
        if held is None:
            continue
        thread, at = held
        states = {row.tid: row.state for row in blocked.capture.proc.threads}
        state = states.get(thread.os_thread_id or 0)
        if is_still(case.cell) and state in ("S", "D"):
            yield _sleeping(case.cell, blocked, thread, at)
        lasted = in_one_place_s(case.cell, blocked.rank) if state == "R" else 0.0
        if lasted and was_given_up(case.cell) and not python_answered(blocked.rank):
            yield _busy(case.cell, blocked, thread, at, lasted)
    for blocked in blocked_ranks(case)[:4]:
        owner = _owner(blocked.capture)
        who = owner.title if owner else "no thread"
        yield Declined(f"{who} owned the GIL of rank {blocked.number} at the last snapshot", blocked.source)


def _owner(capture: CaptureEvidence) -> PythonThread | None:
    return next((t for t in capture.stacks if t.owns_gil), None)


def _held(blocked: BlockedRank) -> tuple[PythonThread, Place] | None:
    """The thread that owned the GIL at the same line in the last two snapshots, and its innermost user line."""
    owners = [_owner(capture) for capture in blocked.rank.captures if capture.stacks][-2:]
    before, now = owners if len(owners) == 2 else (None, None)
    if before is None or now is None:
        return None
    if (before.os_thread_id, before.lines) != (now.os_thread_id, now.lines):
        return None
    at = locations.of_frames(now.frames)
    return (now, at) if at else None


def _owns(blocked: BlockedRank, thread: PythonThread, at: Place) -> Claims:
    claim = f"{thread.title} owns the GIL{at_line(at)}{blocked.state.in_both_snapshots}"
    return {claim: f"{blocked.capture.source}/answers.json#gil_owner"}


def _sleeping(cell: CellEvidence, blocked: BlockedRank, thread: PythonThread, at: Place) -> Draft:
    call = f", in {blocked.state.call}" if blocked.state.call else ""
    way = _way(blocked)
    sleeps = f"that thread sleeps in the kernel{call}{way}: a wait that should have released the GIL"
    return inside_rank(
        cell,
        blocked,
        # The kernel may end an uninterruptible wait by itself: in a driver, for a disk.
        strength=Strength.LIKELY if blocked.state.in_kernel else Strength.CONCLUSIVE,
        summary=f"Rank {blocked.number} sleeps in a native call{at_line(at)} and holds the GIL: no Python thread of it can run.",
        at=at,
        evidence={**_owns(blocked, thread, at), sleeps: f"{blocked.capture.source}/proc.json"},
    )


def _way(blocked: BlockedRank) -> str:
    """The native functions that led there, innermost first: which object's destructor it is, say."""
    named = dict.fromkeys(name for name in blocked.state.inner if "::" in name and "<" not in name)
    return f" ({' < '.join(list(named)[:4])})" if named else ""


def _busy(cell: CellEvidence, blocked: BlockedRank, thread: PythonThread, at: Place, lasted: float) -> Draft:
    silent = python_silent(blocked.rank)
    evidence = _owns(blocked, thread, at)
    if silent:
        evidence["no Python code of the rank answered a request"] = silent
    pause = f"the longest earlier pause of this job was {cell.watch.longest_quiet_s or 0:.1f} s"
    return inside_rank(
        cell,
        blocked,
        strength=Strength.LIKELY if silent else Strength.WEAK,
        summary=f"Rank {blocked.number} has been in one native call{at_line(at)} for {lasted:.0f} s, at full CPU and with the GIL.",
        at=at,
        evidence={**evidence, f"it has been in that call for {lasted:.0f} s; {pause}": "watch.json"},
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the call ever returns",
    )


RULE = Rule(
    means={"gil_held_native_call": "A native call holds the GIL, so that no Python thread of the rank runs."},
    family="blocked",
    detected="One thread owns the GIL at the same line in both snapshots and sleeps in the kernel. Or, when the job was given up, it had run in one call for at least 20 s and ten times the longest pause before, and no Python of the rank answered in between.",
    fix="Release the GIL around the call (pybind11: gil_scoped_release; ctypes: CDLL, not PyDLL), or bound its input.",
    check=gil_held_native_call,
    needs=("stacks",),
    confused_with=("local_lock_deadlock", "livelock_user_code", "slow_compute", "missing_rank"),
)
