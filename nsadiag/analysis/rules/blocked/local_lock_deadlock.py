"""A wait for a lock, a queue or another thread of the same process that nothing in the process will ever end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import (
    BlockedRank,
    hung_ranks,
    living_children,
    may_be_idle,
    user_threads,
)
from nsadiag.analysis.rules.blocked.event_loop import LoopWait, blocking_task, loops_beside
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.exits.child_exceptions import has_dead_child, waits_for_children
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.blocking import is_server, is_timer
from nsadiag.evidence.records import Strength
from nsadiag.source import loops

WAITS = {"lock": "is blocked on a lock or another thread", "queue": "is blocked on a queue"}


class LockCause(NamedTuple):
    """The reason for a wait, the fix, and the strength of the evidence."""

    says: str
    fix: str
    strength: Strength


NO_THREAD = LockCause(
    "no other thread that runs user code is left in the process to wake it",
    "Find what ended the thread that should have answered, and wait with a timeout that reports it.",
    Strength.STRONG,
)
PENDING_TIMER = LockCause(
    "of other threads only a threading.Timer is left, which has not yet called its function",
    "Find what ended the thread that should have answered. If the timer's function is what answers, the wait is as long as its interval.",
    Strength.LIKELY,
)
IDLE_SERVER = LockCause(
    "no active thread of the process can wake it, but one belongs to a server without a request",
    "If it waits for requests, this is an idle server: send one. Otherwise find what ended the thread that should have answered.",
    Strength.GUESS,
)
IDLE_CONSUMER = LockCause(
    "nothing has arrived for minutes, but it keeps waiting with a timeout, and possible senders are alive",
    "If this is a pause, it is an idle consumer and all is well. Otherwise find what became of the sender.",
    Strength.GUESS,
)
POOL = LockCause(
    "it waits for a result of a multiprocessing.Pool that does not arrive: if a worker dies, the pool replaces it and forgets the task",
    "Check what the workers do with that task, and whether one has died. concurrent.futures.ProcessPoolExecutor raises in that case; or give the result a timeout.",
    Strength.LIKELY,  # a pool notices the death of a worker, but does not report it
)
DEAD_CHILD = LockCause(
    "one of its child processes has ended and may be the one that should have answered",
    "Find what ended the child (the rank's stderr has its last output), and wait with a timeout that checks whether it is alive.",
    Strength.LIKELY,
)


def local_lock_deadlock(case: Case) -> Iterator[Draft | Declined]:
    for blocked in hung_ranks(case):
        state, task = blocked.state, blocking_task(blocked)
        if state.place is None:
            continue
        if task and task.kind == "inside":
            yield _of_task(case.cell, blocked, task)
        elif asked := _asks_itself(case.cell, blocked):
            why = _why(case.cell, blocked)
            why = why._replace(strength=why.strength.at_most(Strength.LIKELY))
            yield _draft(case.cell, blocked, f"polls `{asked}`", why)
        elif state.doing in WAITS and state.same:
            yield _draft(case.cell, blocked, WAITS[state.doing], _why(case.cell, blocked))
    yield from blocked_elsewhere(
        case, tuple(WAITS), "does not wait for a lock, a queue or a thread of its own"
    )


def _draft(cell: CellEvidence, blocked: BlockedRank, waits: str, why: LockCause) -> Draft:
    at, call = at_line(blocked.state.place), f", in {blocked.state.call}" if blocked.state.call else ""
    return inside_rank(
        cell,
        blocked,
        strength=why.strength,
        summary=f"Rank {blocked.number} {waits}{at}: {why.says}.",
        evidence={
            f"the main thread of rank {blocked.number} is{at}{blocked.state.in_both_snapshots}{call}": blocked.source,
            why.says: blocked.source,
        },
        fix=why.fix,
    )


def _of_task(cell: CellEvidence, blocked: BlockedRank, task: LoopWait) -> Draft:
    at = at_line(task.place)
    return inside_rank(
        cell,
        blocked,
        strength=task.strength,
        summary=f"Rank {blocked.number} waits in its event loop for {task.says}{at}: {task.why}.",
        evidence={f"task {task.name} is{at}": task.source, task.why: task.source},
        fix="Run tasks in an asyncio.TaskGroup, or check the result of each: a failure then also ends the tasks that wait for it.",
        at=task.place,
    )


def _asks_itself(cell: CellEvidence, blocked: BlockedRank) -> str | None:
    """The condition of a loop that polls its own process; None if the rank is in no such loop."""
    at = blocked.state.place
    if blocked.state.doing != "sleep" or at is None:
        return None
    asked = loops.asks(cell.code, at, has_children=bool(living_children(blocked)))
    return asked[1] if asked and asked[0] == "inside" else None


def _why(cell: CellEvidence, blocked: BlockedRank) -> LockCause:
    if holder := _by_holder(cell, blocked):
        return holder
    if any(is_server(f.filename) for t in blocked.capture.other_threads for f in t.frames):
        return IDLE_SERVER
    if may_be_idle(cell, blocked):
        return IDLE_CONSUMER
    if threads := _by_threads(blocked):
        return threads
    if any(f.filename.endswith("multiprocessing/pool.py") for f in blocked.capture.main_frames):
        return POOL._replace(strength=Strength.STRONG) if has_dead_child(blocked) else POOL
    if any(is_timer(t.frames) for t in blocked.capture.other_threads):
        return PENDING_TIMER
    # The child's exception is the cause, but is not available here; rank_exception finds it in the rank's stderr.
    return DEAD_CHILD if waits_for_children(blocked) and has_dead_child(blocked) else NO_THREAD


def _by_holder(cell: CellEvidence, blocked: BlockedRank) -> LockCause | None:
    """A thread that holds the lock which the innermost line requests."""
    wanted = _names(loops.wanted(cell.code, blocked.state.place)) if blocked.state.place else set()
    for outer in blocked.state.frames[1:]:
        if wanted & _names(loops.held(cell.code, outer)):
            return LockCause(
                f"the same thread took it{at_line(outer)} and has not left that block: no other thread can release it",
                "Take an RLock, or let the handler or callback only set a flag that the loop checks.",
                Strength.CONCLUSIVE,
            )
    for thread, place in user_threads(blocked.capture):
        if wanted & _names(loops.held(cell.code, place)):
            return LockCause(
                f"{thread.title} holds it and is{at_line(place)}",
                "Take the locks in the same order everywhere, and hold no lock while waiting for something else.",
                Strength.STRONG,
            )
    return None


def _names(locks: Iterable[str]) -> set[str]:
    """The last name of each: an object's own lock has another path in each of its methods."""
    return {lock.rpartition(".")[2] for lock in locks}


def _by_threads(blocked: BlockedRank) -> LockCause | None:
    """Threads of the process that could answer but do not."""
    in_loops = loops_beside(blocked.capture)
    others = [
        f"{t.thread_name or t.title}{at_line(p)}"
        for t, p in user_threads(blocked.capture)
        if t not in in_loops
    ]
    if others:
        return LockCause(
            f"no other thread can wake it ({'; '.join(others[:3])})",
            "Make the other thread always acknowledge, also when it skips or fails, and wait with a timeout.",
            Strength.STRONG,
        )
    if not in_loops:
        return None
    return LockCause(
        f"a task in the event loop of {in_loops[0].title} may have to wake it, and none of its tasks moves",
        "Check what the tasks of that loop wait for (asyncio.all_tasks), give them timeouts, and pass their exceptions on to the waiting thread.",
        Strength.WEAK,  # the task may wait for something external
    )


RULE = Rule(
    means={"local_lock_deadlock": "A thread waits for a lock or queue that its holder will never release."},
    family="blocked",
    detected="In both snapshots the rank's main thread sleeps on a lock, queue, event or join of its own process. The other threads' stacks and the source say who holds the lock: the same thread (a signal handler), another thread (lock order), or none that could release it. In an event loop its tasks say so. A timed wait that is repeated does not count where no rank waits for this one and a process, thread or socket may still answer.",
    fix="Take locks in one order, release them in a finally, and wait with a timeout.",
    check=local_lock_deadlock,
    needs=("stacks",),
    explained_by=("external_wait",),
    confused_with=("livelock_user_code", "gil_held_native_call", "external_wait", "missing_rank"),
)
