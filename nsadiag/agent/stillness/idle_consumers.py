"""Ranks that have nothing to do: consumers that wait for work, with a time limit, time and again, while nobody waits for them.

A wait that ends by itself is no deadlock, and the next one is none either, as long as somebody lives who may answer it.
Whether peers wait for the rank, in a collective, is for `motion` to see: then the same is a hang.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from nsadiag.agent.stillness.activity import BUSY_SHARE
from nsadiag.agent.stillness.external_waits import ALWAYS_S, LONG_S, PACED_S, Stack
from nsadiag.agent.stillness.timed_waits import in_event_loop
from nsadiag.evidence.blocking import Waker, by_wchan, has_own_limits, is_library, is_lock, wakers
from nsadiag.evidence.documents.kernel import KernelChild, KernelProcess, KernelThread
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.user_code import is_user

# On the stack of a process that another one started to work for it; torchrun only watches those that it starts.
WORKER = re.compile(r"/multiprocessing/process\.py$")
OF_A_LAUNCHER = re.compile(r"/torch/distributed/(elastic|launcher|run)")
# The longest limit that is one: who gives a day means for ever, and wants Ctrl-C to work.
LIMIT_S = 300.0


def idleness(
    before: KernelProcess, after: KernelProcess, then: Stack, now: Stack, others: Sequence[PythonThread]
) -> tuple[str | None, float]:
    """The work that an idle main thread waits for, in words, and the silence in seconds in which that is no hang.

    By two proc.json, its stacks, and the other threads at the second look, as py-spy shows them. None and 0 where it is
    not idle, or nobody is left who could give it work.
    """
    inner, caller = _wait(now)
    if caller is None or _wait(then)[1] != caller:
        return None, 0.0
    brings, brings_s = _brought(before, after, now, inner)
    if not (_has_limit(before) and _has_limit(after)) and not (
        _woke(before, after) and (_has_limit(before) or _has_limit(after))
    ):
        # Without a limit of its own it hangs as soon as the other side does.
        return (f"waits for {brings}", min(brings_s, PACED_S)) if brings_s == ALWAYS_S else (None, 0.0)
    if brings is None:
        brings, brings_s = _elsewhere(before, after, inner, others)
    return (f"asks again and again, with a time limit, for {brings}", brings_s) if brings else (None, 0.0)


def _wait(frames: Stack) -> tuple[Stack, tuple[Any, ...] | None]:
    """The standard library's part of a stack that waits, and the user's function that called it."""
    inner = list(itertools.takewhile(lambda frame: is_library(str(frame[1])), frames))
    caller = next(iter(frames[len(inner) :]), None)
    if caller is None or has_own_limits(str(caller[1])) or not is_user(str(caller[1])):
        return inner, None
    return inner, caller[:2]


def _limits(row: KernelProcess | KernelThread, t_mono_ns: int) -> list[float]:
    """Seconds for which a thread waits at most, as far as anything limits it."""
    moments = [row.sleeps_until_mono_ns, row.waits_until_mono_ns]
    return [(at - t_mono_ns) / 1e9 for at in moments if at] + [s for s in [row.wait_limit_s] if s]


def _has_limit(proc: KernelProcess) -> bool:
    return any(limit <= LIMIT_S for limit in _limits(proc, proc.t_mono_ns))


def _woke(before: KernelProcess, after: KernelProcess) -> bool:
    return after.voluntary_switches > before.voluntary_switches


def _brought(
    before: KernelProcess, after: KernelProcess, frames: Stack, inner: Stack
) -> tuple[str | None, float]:
    """Work by the process that started this one, or from a child of its own, over a queue, pipe or event between processes."""
    # One that naps, between questions to whatever its starter shares with it, is in no frame of the library.
    if inner and not any(wakers(str(frame[1])) & Waker.LOCAL for frame in inner):
        return None, 0.0
    then, now = before.spawner, after.spawner
    if now and is_a_worker(frames):
        lives = (then is not None and now.turns > then.turns) or _uses_cpu(before, after) or _sleeps(after)
        return "work by the process that started it", ALWAYS_S if lives else LONG_S
    return None, 0.0


def is_a_worker(frames: Stack) -> bool:
    """Whether the process was started by multiprocessing, to work for the one that did."""
    files = [str(frame[1]) for frame in frames]
    return any(map(WORKER.search, files)) and not any(map(OF_A_LAUNCHER.search, files))


def _uses_cpu(before: KernelProcess, after: KernelProcess) -> bool:
    """Whether the process that started the rank, or another one of its family, computes."""
    seconds = after.seconds - before.seconds
    then, now = (
        proc.spawner.cpu_s + proc.spawner.family_cpu_s if proc.spawner else 0.0 for proc in (before, after)
    )
    return seconds > 0 and (now - then) / seconds > BUSY_SHARE


def _sleeps(proc: KernelProcess) -> bool:
    """Whether a thread of the process that started the rank is in a sleep that ends."""
    ends = proc.spawner.sleeps_until_mono_ns if proc.spawner else ()
    return any((end - proc.t_mono_ns) / 1e9 <= LIMIT_S for end in ends)


def _elsewhere(
    before: KernelProcess, after: KernelProcess, inner: Stack, others: Sequence[PythonThread]
) -> tuple[str | None, float]:
    """Others who may end such a wait: a child or thread that is not itself blocked on a lock, or the world."""
    if any(_child_moves(before, after, child) for child in after.children):
        return "something of a child that is not stuck itself", LONG_S
    files = [str(frame[1]) for frame in inner]
    asks_world = any(wakers(file) & Waker.OUTSIDE for file in files) or in_event_loop(files)
    # At a file, whichever it is: sockets and select wait in C, under the user's own line.
    if asks_world or (after.wait_limit_s and not any(wakers(file) & Waker.LOCAL for file in files)):
        return "something that comes in over a socket or file", LONG_S
    if any(_may_answer(thread, after) for thread in others):
        return "another thread, which may still answer", LONG_S
    return None, 0.0


def _child_moves(before: KernelProcess, after: KernelProcess, child: KernelChild) -> bool:
    """Whether it woke between the looks, or is in a sleep that ends."""
    then = next((c for c in before.children if c.pid == child.pid), child)
    ends = child.sleeps_until_mono_ns
    woke = (child.turns or 0) > (then.turns or 0)
    return woke or bool(ends and (ends - after.t_mono_ns) / 1e9 <= LIMIT_S)


def _may_answer(thread: PythonThread, after: KernelProcess) -> bool:
    """Whether a thread of the user's goes on by itself: it sleeps, waits with a limit, or for anything but a lock."""
    files = [frame.filename for frame in thread.frames]
    if not any(map(is_user, files)):
        return False
    row = next((t for t in after.threads if t.tid == thread.os_thread_id), None)
    limits = _limits(row, after.t_mono_ns) if row else []
    called = by_wchan(row.wchan) if row else None
    at_a_lock = is_lock(files[0]) or (called is not None and called.state == "lock")
    return any(limit <= LIMIT_S for limit in limits) or not at_a_lock
