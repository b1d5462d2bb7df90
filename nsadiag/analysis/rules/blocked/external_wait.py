"""A wait for something outside the job: a server, a child process, a store key that is never set, a lock file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.facts.thread_state import Doing
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks, living_children, user_threads
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.blocked.event_loop import LoopWait, blocking_task
from nsadiag.analysis.rules.drafts import at_line, inside_rank, named
from nsadiag.analysis.rules.reasons import blocked_elsewhere, not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.blocking import OF_ITS_PROCESS, polling_library, waits_outside
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Place, Strength
from nsadiag.source import loops

OUTSIDE: tuple[Doing, ...] = ("socket", "process", "pipe", "signal", "store", "sleep")
ONE_SLEEP_S = 60.0
LOCKS = ("flock", "fcntl")


@dataclass(frozen=True, kw_only=True)
class External:
    """Something outside the rank that it waits for."""

    what: str
    fix: str
    strength: Strength = Strength.STRONG


PIPE = External(
    what="the other end of a pipe",
    fix="Check the process at the other end of the pipe, and read with a timeout.",
)
SIGNAL = External(
    what="a signal, which only another process can send",
    fix="Find out why the sender (a scheduler, another rank) does not send the signal, and wait with signal.sigtimedwait.",
)


def external_wait(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell) and not (case.cell.stopped == "timeout" and _sleeps_on(case.cell)):
        yield from not_still(case.cell)
        return
    # Ranks that wait at one line for the same thing have one cause.
    causes: dict[tuple[Place, External], list[BlockedRank]] = {}
    for blocked in blocked_ranks(case):
        if blocked.state.place is not None and (found := _waits_for(case, blocked)):
            causes.setdefault((blocked.state.place, found), []).append(blocked)
    for (_, found), alike in causes.items():
        yield _draft(case.cell, alike, found)
    for blocked in blocked_ranks(case):
        if (task := blocking_task(blocked)) and task.kind == "outside":
            yield _of_task(case.cell, blocked, task)
    yield from blocked_elsewhere(case, OUTSIDE, "does not wait for anything outside the job")


def _sleeps_on(cell: CellEvidence) -> bool:
    """Whether it slept in every snapshot of the silence, in more than one sleep."""
    looks = [look for look in cell.watch.looks if look.judgement == "asleep"]
    return len(looks) > 1 and cell.watch.looks[-1].judgement == "asleep"


def _waits_for(case: Case, blocked: BlockedRank) -> External | None:
    """The thing outside the rank that it waits for; None if it waits for something else."""
    state = blocked.state
    if state.call in LOCKS:
        return _file_lock(blocked)
    if state.doing == "socket" and not _in_event_loop(blocked):
        peer = (state.descriptor.peer if state.descriptor else "") or "a socket"
        return External(what=f"an answer from {peer}", fix="Give the request a timeout, and retry.")
    if state.doing == "process":
        return _child(blocked)
    if state.doing in ("pipe", "signal"):
        return PIPE if state.doing == "pipe" else SIGNAL
    if state.doing in ("store", "sleep") and not _may_come_of_a_peer(case, blocked):
        return _store_key(blocked) if state.doing == "store" else _polled(case.cell, blocked)
    return _through_a_thread(blocked) if state.doing in OF_ITS_PROCESS else None


def _file_lock(blocked: BlockedRank) -> External:
    path = blocked.state.descriptor.path if blocked.state.descriptor else ""
    held_by = blocked.capture.proc.lock_held_by
    holder = f", which process {held_by.pid} holds ({held_by.command[:80]})" if held_by else ""
    fix = "Find who holds the lock (lslocks), and lock with a timeout."
    return External(what=f"a lock on {path or 'a file'}{holder}", fix=fix)


def _in_event_loop(blocked: BlockedRank) -> bool:
    """A wait in asyncio: the stack does not show which task waits, and for what."""
    return any("/asyncio/" in f.filename for f in blocked.capture.main_frames)


def _child(blocked: BlockedRank) -> External:
    living = living_children(blocked)
    command = f" ({living[0].command[:80]})" if len(living) == 1 and living[0].command else ""
    fix = "Find out why the child does not exit, give it stdin=DEVNULL, and wait with a timeout."
    return External(what=f"a child process{command}", fix=fix)


def _store_key(blocked: BlockedRank) -> External | None:
    key = (blocked.state.event or "").partition("key=")[2]
    fix = "Set the key under exactly the name that is waited for, and wait with a timeout."
    return External(what=f"the key {key} in a key-value store", fix=fix) if key else None


def _polled(cell: CellEvidence, blocked: BlockedRank) -> External | None:
    at = blocked.state.place
    if library := _library(blocked):
        fix = "Check what it waits for (a lock file left by a dead process?), and give it a timeout."
        return External(what=f"what {library} polls for", fix=fix)
    asked = loops.asks(cell.code, at, has_children=bool(living_children(blocked))) if at else None
    if asked is None or asked[0] == "inside" or _sleeps_for_long(cell, blocked):
        return None
    return External(
        what=f"the condition that it polls, `{asked[1]}`" if asked[1] else "what it asks for again and again",
        fix="Give the loop a timeout whose error names what is missing; remove what a dead process left behind.",
        strength=Strength.LIKELY,
    )


def _sleeps_for_long(cell: CellEvidence, blocked: BlockedRank) -> bool:
    """Whether it is in one sleep, of which nobody saw the end: who polls wakes in between."""
    last = cell.watch.last_look
    moved = last.of(blocked.number) if last else None
    return moved is not None and (moved.wakes_in_s or 0.0) > ONE_SLEEP_S


def _library(blocked: BlockedRank) -> str | None:
    """The library function that sleeps below the user's line."""
    for frame in _below(blocked.capture.main_frames, blocked.state.place):
        if library := polling_library(frame.filename):
            return f"{frame.name} of {library}"
    return None


def _may_come_of_a_peer(case: Case, blocked: BlockedRank) -> bool:
    """Whether a peer in a branch of its own may provide it later."""
    peers = [case.thread_states[r] for r in blocked.waiters if r in case.thread_states]
    return any(loops.on_rank(case.cell.code, peer.frames) for peer in peers)


def _through_a_thread(blocked: BlockedRank) -> External | None:
    """Another thread that the main thread waits for and that waits for something external."""
    wchan = {row.tid: row.wchan for row in blocked.capture.proc.threads}
    for thread, at in user_threads(blocked.capture):
        below = _below(thread.frames, at)
        if waits_outside(below, wchan.get(thread.os_thread_id or 0)):
            return External(
                what=f"{thread.title}, which waits for something outside the process{at_line(at)}",
                fix="Give that thread's request a timeout, and let it notify the main thread when it gives up.",
                strength=Strength.LIKELY,
            )
    return None


def _below(frames: Sequence[StackFrame], at: Place | None) -> Sequence[StackFrame]:
    """The frames that the user's line has called."""
    lines = [(frame.filename, frame.line) for frame in frames]
    return frames[: lines.index((at.file, at.line))] if at and (at.file, at.line) in lines else ()


def _how_sure(cell: CellEvidence, strength: Strength) -> Strength:
    """The wait is certain; only time shows that no answer will come."""
    return strength.at_most(Strength.LIKELY) if is_short(cell) and not cell.attached else strength


def _draft(cell: CellEvidence, alike: list[BlockedRank], external: External) -> Draft:
    """`alike`: the ranks that wait at the same line for the same thing."""
    blocked, guilty = alike[0], tuple(each.number for each in alike)
    state, at = blocked.state, at_line(blocked.state.place)
    call = f", in {state.call}" if state.call else ""
    wait, its = ("waits", "its") if len(alike) == 1 else ("wait", "their")
    found = inside_rank(
        cell,
        blocked,
        # Only the job's own processes set a key in the store, and they all wait.
        strength=external.strength if state.doing == "store" else _how_sure(cell, external.strength),
        summary=f"{named(cell, guilty).capitalize()} {wait}{at} for {external.what}. None of {its} peers can provide that.",
        evidence={
            f"rank {blocked.number} is{at}{blocked.state.in_both_snapshots}{call}": blocked.source,
            f"it waits for {external.what}": f"{blocked.capture.source}/proc.json",
        },
        fix=external.fix,
        # After a retry a server may answer; a file, key or child that nothing provides would be waited for again.
        actions=("retry",) if state.doing == "socket" else ("fix code",),
    )
    waiters = tuple(rank for rank in blocked.waiters if rank not in guilty)
    return dataclasses.replace(found, guilty_ranks=guilty, blocked_ranks=waiters)


def _of_task(cell: CellEvidence, blocked: BlockedRank, task: LoopWait) -> Draft:
    at = at_line(task.place)
    return inside_rank(
        cell,
        blocked,
        strength=_how_sure(cell, task.strength),
        summary=f"Rank {blocked.number} waits for {task.says}, in its event loop{at}. None of its peers can provide that.",
        evidence={f"task {task.name} is{at}": task.source},
        fix="Give what the task awaits a timeout (asyncio.timeout, asyncio.wait_for), and retry.",
        at=task.place,
    )


RULE = Rule(
    means={
        "external_wait": "A rank waits for something outside the job: a file, a socket, a store key, a process."
    },
    family="blocked",
    detected="In both snapshots the rank waits on a socket, a child process, a file lock, or a store key of the user's own; or it polls for a file or a server with sleeps in between; or a thread or event-loop task that it waits for does. A wait that a peer in a rank-dependent branch may still end does not count. Where an answer may still come, the silence has to last 20 s, or a minute where the wait has a timeout of its own or the other end is working; during the first minute the confidence is 75 %.",
    fix="Wait with a timeout whose error names what is missing, and retry.",
    check=external_wait,
    needs=("stacks",),
    explained_by=("io_stall",),
    confused_with=("local_lock_deadlock", "io_stall", "missing_rank"),
)
