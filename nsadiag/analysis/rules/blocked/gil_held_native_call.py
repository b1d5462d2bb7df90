"""A native call that holds the GIL: no Python thread of that rank can run."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import in_one_place_s, python_answered, python_silent
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.drafts import inside_rank, last_look
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.records import Place, Strength, Where

FIX = "Release the GIL around the call (pybind11: gil_scoped_release; ctypes: CDLL, not PyDLL), or bound its input."


def _owner(capture: CaptureEvidence) -> PythonThread | None:
    return next((t for t in capture.stacks if t.owns_gil), None)


def _holds(blocked: BlockedRank) -> tuple[PythonThread, Place] | None:
    """The thread that owned the GIL at the same line in the last two snapshots, and its innermost user line."""
    shown = [c for c in blocked.rank.captures if c.stacks][-2:]
    owners = [_owner(capture) for capture in shown]
    if len(shown) < 2 or owners[0] is None or owners[1] is None:
        return None
    if owners[0].os_thread_id != owners[1].os_thread_id:
        return None
    if owners[0].lines != owners[1].lines:
        return None
    at = locations.of_frames(owners[1].frames)
    return (owners[1], at) if at else None


def _state(blocked: BlockedRank, thread: PythonThread) -> str | None:
    """The kernel's state of that thread."""
    threads = blocked.capture.proc.threads
    return next((t.state for t in threads if t.tid == thread.os_thread_id), None)


def _about(blocked: BlockedRank, thread: PythonThread, at: Place) -> Claims:
    return {
        f"thread {thread.thread_name} owns the GIL at {locations.short(at)} in both snapshots": f"{blocked.capture.source}/answers.json#gil_owner"
    }


def gil_held_native_call(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        held = _holds(blocked)
        if held is None:
            continue
        thread, at = held
        state = _state(blocked, thread)
        if is_still(case.cell) and state in ("S", "D"):
            yield _blocked(case.cell, blocked, thread, at)
        elif state == "R" and was_given_up(case.cell) and not python_answered(blocked.rank):
            lasted = in_one_place_s(case.cell, blocked.rank)
            if lasted:
                yield _busy(case.cell, blocked, thread, at, lasted)
    if is_still(case.cell):
        yield from _without_stacks(case)
    yield from _unowned(case)


def _unowned(case: Case) -> Iterator[Declined]:
    for blocked in blocked_ranks(case)[:4]:
        owner = _owner(blocked.capture)
        said = f"thread {owner.thread_name} owned" if owner else "no thread owned"
        yield Declined(f"{said} the GIL of rank {blocked.number} at the last snapshot", blocked.source)


def _without_stacks(case: Case) -> Iterator[Draft]:
    """A rank whose stacks could not be read: torch's server answers in C++, but in neither snapshot where it needs the GIL."""
    graph = case.once(graph_of)
    for rank in (r for r in case.cell.ranks if r.rank in graph.roots()):
        looks = rank.captures[-2:]
        if len(looks) < 2 or any(c.stacks for c in looks) or not all(_answers_in_c_alone(c) for c in looks):
            continue
        at = locations.of_black_box(rank)
        last = f" after {locations.short(at)}" if at else ""
        yield Draft(
            strength=Strength.WEAK,
            summary=f"Some thread of rank {rank.rank} holds the GIL in a native call{last}: no Python thread of it can run.",
            guilty_ranks=(rank.rank,),
            blocked_ranks=tuple(sorted(r for r in graph.waiters if rank.rank in graph.reached_from(r))),
            where=Where(step=rank.end.steps).at(at),
            evidence={
                "torch's server answered in C++ but not where it needs the GIL, in both snapshots": f"{looks[-1].source}/gaps.json",
                **last_look(case.cell),
            },
            fix=FIX,
            next="allow py-spy to read the process (nsadiag doctor says how): it shows the call",
        )


def _answers_in_c_alone(capture: CaptureEvidence) -> bool:
    silent = any(gap.capture == "traceback" and "no answer" in gap.gap for gap in capture.gaps)
    return silent and bool(capture.flight_recorder)


def _blocked(cell: CellEvidence, blocked: BlockedRank, thread: PythonThread, at: Place) -> Draft:
    number = blocked.number
    return inside_rank(
        cell,
        blocked,
        # The kernel may end an uninterruptible wait by itself: in a driver, for a disk.
        strength=Strength.LIKELY if blocked.state.in_kernel else Strength.CONCLUSIVE,
        summary=f"Rank {number} sleeps in a native call at {locations.short(at)} and holds the GIL: no Python thread of it can run.",
        where=at,
        evidence={
            **_about(blocked, thread, at),
            f"that thread sleeps in the kernel{f', in {blocked.state.call}' if blocked.state.call else ''}: a wait that should have released the GIL": f"{blocked.capture.source}/proc.json",
        },
        fix=FIX,
    )


def _busy(cell: CellEvidence, blocked: BlockedRank, thread: PythonThread, at: Place, lasted: float) -> Draft:
    number, silent = blocked.number, python_silent(blocked.rank)
    asked = {"no Python code of the rank answered a request": silent} if silent else {}
    return inside_rank(
        cell,
        blocked,
        strength=Strength.LIKELY if silent else Strength.WEAK,
        summary=f"Rank {number} has been in one native call at {locations.short(at)} for {lasted:.0f} s, at full CPU and with the GIL.",
        where=at,
        evidence={
            **_about(blocked, thread, at),
            **asked,
            f"it has been in that call for {lasted:.0f} s; the longest earlier pause of this job was {cell.watch.longest_quiet_s or 0:.1f} s": "watch.json",
        },
        fix=FIX,
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the call ever returns",
    )


RULE = Rule(
    name="gil_held_native_call",
    means={"gil_held_native_call": "A native call holds the GIL, so that no Python thread of the rank runs."},
    family="blocked",
    detected="One thread owns the GIL at the same line in both snapshots and sleeps in the kernel; or, when the job was given up, it had run in one call for at least 20 s and ten times the longest pause before, and no Python of the rank answered in between",
    fix="Release the GIL around the call (pybind11: gil_scoped_release), or bound its input.",
    check=gil_held_native_call,
    needs=("stacks",),
    confused_with=("local_lock_deadlock", "livelock_user_code", "slow_compute", "missing_rank"),
)
