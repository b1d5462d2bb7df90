"""A rank waits for something outside the job: a server, a child process, a key that nobody sets, a lock file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import is_short
from nsadiag.analysis.facts.thread_state import Doing
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks, living_children, user_threads
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.blocked.event_loop import LoopWait, of_a_thread, stands_for
from nsadiag.analysis.rules.drafts import inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere, not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.blocking import polling_library
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Place, Strength
from nsadiag.source import loops

OUTSIDE: tuple[Doing, ...] = ("socket", "process", "pipe", "signal", "store", "sleep", "io", "kernel")
LOCKS = ("flock", "fcntl")
# Where a thread of the rank may stand that would let the main thread go on, if only the world answered it.
OUTSIDE_FRAMES = ("/ssl.py", "/socket.py", "/http/client.py", "/subprocess.py")
# Where the kernel lets a thread wait for a connection, a peer's bytes, or a child.
OUTSIDE_WCHAN = ("wait_woken", "inet_csk_accept", "inet_wait_for_connect", "unix_stream_data_wait", "do_wait")


def external_wait(case: Case) -> Iterator[Draft | Declined]:
    polls = case.cell.stopped == "timeout" and _sleeps_on(case.cell)
    if not is_still(case.cell) and not polls:
        yield from not_still(case.cell)
        return
    # Ranks that stand at one line for the same thing are one cause.
    causes: dict[tuple[Any, ...], list[BlockedRank]] = {}
    for blocked in blocked_ranks(case):
        if blocked.state.place is not None and (found := _waits_for(case, blocked)):
            causes.setdefault((blocked.state.place, found), []).append(blocked)
    for (_, found), alike in causes.items():
        yield _finding(case.cell, alike, *found)
    for blocked in blocked_ranks(case):
        if (task := stands_for(blocked)) and task.kind == "outside":
            yield _of_task(case.cell, blocked, task)
    yield from blocked_elsewhere(case, OUTSIDE, "for anything outside the job")


def _sleeps_on(cell: CellEvidence) -> bool:
    """Whether it has slept in every snapshot of a silence: one long sleep would have been the same in all."""
    looks = [look for look in cell.watch.looks if look.judgement == "asleep"]
    return len(looks) > 1 and cell.watch.looks[-1].judgement == "asleep"


def _waits_for(case: Case, blocked: BlockedRank) -> tuple[str, str, Strength] | None:
    """The thing that it waits for, what to do about it, and how strong that is."""
    state = blocked.state
    if state.call in LOCKS:
        path = state.descriptor.path if state.descriptor else ""
        held_by = blocked.capture.proc.lock_held_by
        holder = f", which process {held_by.pid} holds ({held_by.command[:80]})" if held_by else ""
        return (
            f"a lock on {path or 'a file'}{holder}",
            "Find who holds the lock (lslocks), and lock with a timeout.",
            Strength.STRONG,
        )
    if state.doing == "socket" and not _in_event_loop(blocked):
        peer = (state.descriptor.peer if state.descriptor else "") or _peer(blocked)
        return (
            f"an answer from {peer or 'a socket'}",
            "Give the request a timeout, and retry.",
            Strength.STRONG,
        )
    if state.doing == "process":
        return (
            f"a child process{_child(blocked)}",
            "See why the child does not end, give it stdin=DEVNULL, and wait with a timeout.",
            Strength.STRONG,
        )
    if state.doing == "pipe":
        return (
            "the other end of a pipe",
            "See to the process at the other end of the pipe, and read with a timeout.",
            Strength.STRONG,
        )
    if state.doing == "signal":
        return (
            "a signal, which only another process can send",
            "See why whoever should send the signal does not (a scheduler, another rank), and wait with signal.sigtimedwait.",
            Strength.STRONG,
        )
    if state.doing == "store" and not _may_come_of_a_peer(case, blocked):
        return _store(blocked)
    if state.doing == "sleep" and not _may_come_of_a_peer(case, blocked):
        return _polls(case.cell, blocked)
    if state.doing in ("lock", "queue"):
        return _through_a_thread(blocked) or _through_a_loop(blocked)
    return None


def _of_task(cell: CellEvidence, blocked: BlockedRank, task: LoopWait) -> Draft:
    at = locations.short(task.place)
    return inside_rank(
        cell,
        blocked,
        strength=_how_sure(cell, task.strength),
        summary=f"Rank {blocked.number} waits in its event loop for {task.says} at {at}. None of its peers can bring that.",
        evidence={f"task {task.name} is at {at}": task.source},
        fix="Give what the task awaits a timeout (asyncio.timeout, asyncio.wait_for), and retry.",
        where=task.place,
    )


def _in_event_loop(blocked: BlockedRank) -> bool:
    """A loop of asyncio waits for all of its tasks at once: which of them, and for what, is not on the stack."""
    return any("/asyncio/" in f.filename for f in blocked.capture.main_frames)


def _peer(blocked: BlockedRank) -> str | None:
    """The address it is connected to, if there is but one that is no peer's: torch's own hold other threads up."""
    rows = blocked.capture.proc.fds.open
    found = {row.peer for row in rows if row.kind == "tcp" and row.state == "SYN_SENT"}
    return str(found.pop()) if len(found) == 1 else None


def _child(blocked: BlockedRank) -> str:
    living = living_children(blocked)
    words = living[0].command[:80] if len(living) == 1 else ""
    return f" ({words})" if words else ""


def _store(blocked: BlockedRank) -> tuple[str, str, Strength] | None:
    event = blocked.state.event or ""
    key = event.partition("key=")[2]
    if not key:
        return None
    return (
        f"the key {key} in a key-value store",
        "Set the key under the very name that is waited for, and wait with a timeout.",
        Strength.STRONG,
    )


def _polls(cell: CellEvidence, blocked: BlockedRank) -> tuple[str, str, Strength] | None:
    at, library = blocked.state.place, _library(blocked)
    if library:
        return (
            f"what {library} asks for again and again",
            "See what it waits for (a lock file that a dead process left behind?), and give it a timeout.",
            Strength.STRONG,
        )
    asked = loops.asks(cell.code, at, has_children=bool(living_children(blocked))) if at else None
    if asked is None or asked[0] == "inside":
        return None
    return (
        f"what it asks for again and again: `{asked[1]}`",
        "Give the loop a limit, with an error that names what did not come; remove what a dead process left behind.",
        Strength.LIKELY,
    )


def _library(blocked: BlockedRank) -> str | None:
    """The library's function that naps within the user's line."""
    frames = blocked.capture.main_frames
    for frame in frames[: _user_index(frames, blocked.state.place)]:
        if library := polling_library(frame.filename):
            return f"{frame.name} of {library}"
    return None


def _may_come_of_a_peer(case: Case, blocked: BlockedRank) -> bool:
    """Whether a peer that waits in a branch of its own may be the one who would bring it, later."""
    peers = [case.thread_states[r] for r in blocked.waiters if r in case.thread_states]
    return any(loops.on_rank(case.cell.code, peer.frames) for peer in peers)


def _through_a_thread(blocked: BlockedRank) -> tuple[str, str, Strength] | None:
    """The main thread waits for another of its threads, and that one for the world."""
    for thread, at in user_threads(blocked.capture):
        inner = [f.filename for f in thread.frames[: _user_index(thread.frames, at)]]
        rows = blocked.capture.proc.threads
        kernel = next((row.wchan for row in rows if row.tid == thread.os_thread_id), None)
        if any(file.endswith(OUTSIDE_FRAMES) for file in inner) or kernel in OUTSIDE_WCHAN:
            name = thread.thread_name
            return (
                f"its thread {name}, which waits for the world at {locations.short(at)}",
                "Give what that thread asks for a timeout, and let it tell the main thread when it gives up.",
                Strength.LIKELY,
            )
    return None


def _through_a_loop(blocked: BlockedRank) -> tuple[str, str, Strength] | None:
    """The same of a thread that runs an event loop, by what its tasks say."""
    task = of_a_thread(blocked)
    if task is None or task.kind != "outside":
        return None
    return (
        f"the event loop of its thread, which waits for the world at {locations.short(task.place)} ({task.says})",
        "Give what that task awaits a timeout (asyncio.timeout, asyncio.wait_for), and let it tell the main thread when it gives up.",
        task.strength.at_most(Strength.LIKELY),
    )


def _user_index(frames: Sequence[StackFrame], at: Place | None) -> int:
    return next((n for n, f in enumerate(frames) if at and (f.filename, f.line) == (at.file, at.line)), 0)


def _how_sure(cell: CellEvidence, strength: Strength) -> Strength:
    """That it waits there is certain; whether the world will never answer, only time tells."""
    return strength.at_most(Strength.LIKELY) if is_short(cell) and not cell.attached else strength


def _finding(cell: CellEvidence, alike: list[BlockedRank], what: str, fix: str, strength: Strength) -> Draft:
    """`alike`: the ranks that stand at the same line for the same thing."""
    blocked, guilty = alike[0], tuple(each.number for each in alike)
    state, number = blocked.state, blocked.number
    at = locations.short(state.place) if state.place else ""
    call = f", in {state.call}" if state.call else ""
    who = f"Rank {number} waits" if len(alike) == 1 else f"Ranks {cell.names(guilty)} wait"
    found = inside_rank(
        cell,
        blocked,
        # A store's key is set by nobody but the job's own processes, and they all wait.
        strength=strength if state.doing == "store" else _how_sure(cell, strength),
        summary=f"{who} at {at} for {what}. None of {'its' if len(alike) == 1 else 'their'} peers can bring that.",
        evidence={
            f"rank {number} is at {at} in both snapshots{call}": blocked.source,
            f"it waits for {what}": f"{blocked.capture.source}/proc.json",
        },
        fix=fix,
        # A server may answer the next time; a file, a key or a child that nobody brings is waited for again.
        actions=("retry",) if state.doing == "socket" else ("fix code",),
    )
    waiters = tuple(rank for rank in found.blocked_ranks if rank not in guilty)
    return dataclasses.replace(found, guilty_ranks=guilty, blocked_ranks=waiters)


RULE = Rule(
    name="external_wait",
    concludes=("external_wait",),
    means={
        "external_wait": "A rank waits for something outside the job: a file, a socket, a store key, a process."
    },
    family="blocked",
    detected="the rank waits, in both snapshots, in a socket, a child's wait, a lock on a file, or a store key of the user's own; or it naps in a loop that asks for a file or a server; or the thread that it waits for does, or the task of its event loop. Not where a peer in a branch on rank may be who brings it; and not before 20 s of silence where a network, a lock on a file or a poll may still answer, or a minute where the wait has a limit of its own, or the lock's holder, the tool, or the child at the other end of the pipe works. In the first minute at 75 %",
    fix="Wait with a timeout that names what did not come, and retry.",
    check=external_wait,
    needs=("stacks",),
    explained_by=("io_stall",),
    confused_with=("local_lock_deadlock", "io_stall", "missing_rank"),
)
