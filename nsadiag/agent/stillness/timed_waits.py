"""Until when a rank waits that moves nothing: sleeps and time limits, of its main thread and of what it may wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nsadiag.evidence.blocking import Waker, by_wchan, has_own_limits, is_lock, wakers, within
from nsadiag.evidence.documents.kernel import KernelChild, KernelProcess

# When a process began is known to a tick of the kernel only.
ONE_SLEEP_NS = 20_000_000


def same_nap(
    before: KernelProcess, after: KernelProcess, *, children: Sequence[KernelChild] = ()
) -> float | None:
    """Seconds, after the second look, until the main thread wakes; None if it woke in between, or does not sleep.

    The same of `children`, by their rows of the second look, where the rank goes on when one of them does.
    """
    then = {child.pid: child.sleeps_until_mono_ns for child in before.children}
    naps = [(before.sleeps_until_mono_ns, after.sleeps_until_mono_ns)]
    naps += [(then.get(child.pid), child.sleeps_until_mono_ns) for child in children]
    ends = [second for first, second in naps if second and _is_one(first, second)]
    return (min(ends) - after.t_mono_ns) / 1e9 if ends else None


def naps(
    before: KernelProcess,
    after: KernelProcess,
    frames: list[tuple[Any, ...]],
    *,
    asks_for_child: bool = False,
    loops: Collection[int] = (),
    timers: Collection[int] = (),
) -> tuple[float | None, float | None]:
    """Seconds until the main thread goes on by itself, and until a thread does that it may be waiting for, by two proc.json.

    `frames`: the main thread's stack at the second look, innermost first. `asks_for_child`: it naps between questions
    whether a process of its own has ended. `loops`: other threads that stand in an event loop of theirs; `timers`: those
    that are a threading.Timer before its call.
    """
    files = [str(frame[1]) for frame in frames]
    children = after.children if asks_for_child else waited_for(after, frames)
    own = same_nap(before, after, children=children)
    if not files or not (is_lock(files[0]) or in_event_loop(files)):
        return own, None if own is not None else _long_nap(before, after)
    caller = next((file for file in files if not is_lock(file)), "")
    until = after.waits_until_mono_ns
    if until and _is_one(before.waits_until_mono_ns, until) and not has_own_limits(caller):
        own = (until - after.t_mono_ns) / 1e9
    then, now = _naps_beside(before, timers), _naps_beside(after, timers)
    ends = [(end - after.t_mono_ns) / 1e9 for tid, end in now.items() if end and _is_one(then.get(tid), end)]
    return own, min([*ends, *_limits(before, after, loops)], default=None)


def waited_for(proc: KernelProcess, frames: list[tuple[Any, ...]]) -> Sequence[KernelChild]:
    """The processes of its own for which the main thread waits: what they do is then what it does."""
    called = by_wchan(proc.wchan)
    # A worker that waits to ask again is late, not stuck.
    if (called and called.state == "process") or any(wakers(str(f[1])) & Waker.CHILD for f in frames):
        return proc.children
    return at_the_pipe(proc)


def at_the_pipe(proc: KernelProcess) -> list[KernelChild]:
    """Those that can let it go on where it stands at a pipe, whatever line of whose code reads or writes there."""
    return [child for child in proc.children if child.pid in (proc.pipe_held_by or ())]


def in_event_loop(files: list[str]) -> bool:
    """Whether a thread with these files on its stack, innermost first, waits for the tasks of an event loop of asyncio."""
    return (
        bool(files)
        and files[0].endswith("/selectors.py")
        and any(wakers(file) & Waker.TASK for file in files)
    )


def _limits(before: KernelProcess, after: KernelProcess, loops: Collection[int]) -> list[float]:
    """Longest waits of other threads' event loops, where a task of theirs sleeps for longer than the looks are apart.

    As with sleeps, a loop that asks more often than that only polls.
    """
    apart_s = after.seconds - before.seconds
    limits = [thread.wait_limit_s for thread in after.threads if thread.tid in loops]
    return [limit for limit in limits if limit and limit > apart_s]


def _long_nap(before: KernelProcess, after: KernelProcess) -> float | None:
    """Seconds left of a sleep, longer than the looks are apart, that it was not in at the first look.

    A poll naps for less, and asks more often; what backs off from a server that refuses sleeps longer each time.
    """
    until, now = after.sleeps_until_mono_ns, after.t_mono_ns
    left = (until - now) / 1e9 if until else 0.0
    return left if left > (now - (before.t_mono_ns or now)) / 1e9 else None


def _naps_beside(proc: KernelProcess, timers: Collection[int]) -> dict[int, int | None]:
    """The times at which threads other than the main one wake, and children, by their ids.

    Of timed waits for a lock only a timer's counts: other threads wait so for work, again and again.
    """
    threads = {t.tid: t.sleeps_until_mono_ns for t in proc.threads if t.tid != proc.pid}
    ringing = {t.tid: t.waits_until_mono_ns for t in proc.threads if t.tid in timers}
    return threads | ringing | {child.pid: child.sleeps_until_mono_ns for child in proc.children}


def _is_one(first: int | None, second: int | None) -> bool:
    """Whether two looks saw one and the same sleep."""
    return first is not None and second is not None and abs(first - second) < ONE_SLEEP_NS


def limit_s(before: KernelProcess, after: KernelProcess, frames: list[tuple[Any, ...]]) -> float | None:
    """Longest wait of the main thread where it stood both times: for a socket, a pipe, a timer of its event loop.

    None where torch waits.
    """
    files = [str(frame[1]) for frame in frames]
    caller = within(files)[1]
    known: list[float] = [proc.wait_limit_s or 0.0 for proc in (before, after)]
    return known[0] if files and all(known) and not has_own_limits(caller) else None
