"""Waits for the world outside a job that are no hang yet: for requests of clients, for answers over a network, for tools."""

from __future__ import annotations

import itertools
from typing import Any

from nsadiag.agent.stillness.offspring import Beat, Offspring
from nsadiag.agent.stillness.timed_waits import ONE_SLEEP_NS, at_the_pipe, in_event_loop
from nsadiag.evidence.blocking import (
    Waker,
    by_wchan,
    has_own_limits,
    is_server,
    polling_library,
    wakers,
    within,
)
from nsadiag.evidence.documents.kernel import KernelChild, KernelProcess
from nsadiag.evidence.user_code import is_user
from nsadiag.source.loop_exits import LoopSource, loop_around
from nsadiag.source.patterns.loop_state import is_bounded, only_runs_out
from nsadiag.source.polling import ASKS_CHILDREN, ASKS_INSIDE, ASKS_OUTSIDE

IDLE_S = 60.0  # between two looks at somebody who has nothing to do
# For how long a silence is believed to end by itself: of a server all night, many a service or database behind an interface
# takes 20 s, and a minute is the limit that many a call has.
ALWAYS_S, ANSWER_S, PACED_S = 1e9, 20.0, 62.0
TURNS = 2  # of a tool between two looks
# The same of a process that moves now and then without anything to show for it, as one does that polls for good.
LONG_S = 300.0


Stack = list[tuple[Any, ...]]  # (function, file, line), innermost first


def patience(
    before: KernelProcess, after: KernelProcess, frames: Stack, others: list[Stack]
) -> tuple[str | None, float]:
    """The wait for something outside the job, in words, and the silence in seconds in which that is no hang; None and 0 if nothing.

    By two proc.json, the main thread's stack where it stood in both looks, and the other threads' at the second.
    """
    if serves(frames):
        return "is a server that waits for a request", ALWAYS_S
    if frames and wakers(str(frames[0][1])) & Waker.THREAD and any(map(serves, others)):
        # Or that thread only hands out metrics.
        return "waits beside a server's thread, maybe for a request that comes in there", PACED_S
    turns = turns_of_tools(before, after, frames, others)
    if turns >= TURNS:
        return f"waits for a tool that woke {turns} times", PACED_S
    found = lock_of(before, after)
    if found:
        return found
    if asks(after, frames, others):
        return "waits for an answer over the network", ANSWER_S
    paced_s = paces(before, after, frames)
    if paced_s:
        return "naps in each round of a loop that no answer ends", paced_s
    asked = polls(after, frames)
    if asked:
        # Who looks at the clock as well gives up by himself.
        return "asks the world again and again", PACED_S if asked == "with a limit" else ANSWER_S
    return None, 0.0


def serves(frames: Stack) -> bool:
    """Whether the main thread is in a server's loop without a request: peers rightly wait for what will come of one.

    `frames`: its stack, where it stood in both looks.
    """
    files = _files(frames)
    loop = next((n for n, file in enumerate(files) if is_server(file)), None)
    if loop is not None:
        return all(wakers(file) & Waker.CLIENT for file in files[:loop])
    # A loop of the user's own, that takes one connection after the other.
    inner = list(itertools.takewhile(lambda frame: frame[0].endswith("accept"), frames))
    caller = next(iter(frames[len(inner) :]), None)
    return bool(inner and caller and _loop(caller))


def _loop(frame: tuple[Any, ...]) -> LoopSource | None:
    """The loop of the user's in which that line is."""
    function, file, line = frame
    return loop_around(str(file), str(function), {int(line)}) if is_user(str(file)) else None


def asks(proc: KernelProcess, frames: Stack, others: list[Stack]) -> bool:
    """Whether the main thread waits, itself or by a thread or child, for whoever is at the other end of a network.

    `others`: the stacks of the threads at the second look.
    """
    files = _files(frames)
    by_children = _within(Waker.CHILD, files) or polls_children(proc, frames)
    children = proc.children if by_children else at_the_pipe(proc)
    if any(_awaits_answer(child) for child in children):
        return True
    if files and wakers(files[0]) & Waker.THREAD:
        return any(_within(Waker.OUTSIDE, each) or in_event_loop(each) for each in map(_files, others))
    if in_event_loop(files):
        return True  # of all tasks of an event loop nobody can see which would let it go on
    in_kernel = _awaits_answer(proc) and bool(files) and not has_own_limits(files[0])
    return _within(Waker.OUTSIDE, files) or in_kernel


def going_on(
    before: KernelProcess,
    after: KernelProcess,
    frames: Stack,
    others: list[Stack],
    offspring: Offspring,
    times: float,
) -> tuple[str | None, float, float]:
    """The work of processes that the main thread waits for, in words, for how many seconds they may still pause, and in which silence.

    `offspring` are the rank's descendants in this silence, on a machine where everything takes `times` as long as usual.
    What writes gets somewhere, so that it is believed as long as it does. Where the kernel does not say which of them is waited
    for, it may be another one.
    """
    known = {pid for proc in (before, after) if proc.main for pid in proc.main.awaits}
    is_known, of_a_thread = bool(known), False
    files = _files(frames)
    at_a_lock = bool(files) and bool(wakers(files[0]) & Waker.THREAD)
    if not known and at_a_lock:
        known = {pid for proc in (before, after) for thread in proc.threads for pid in thread.awaits}
        of_a_thread = bool(known)
    programs = any(_within(Waker.TOOL, each) for each in (files, *(map(_files, others) if at_a_lock else ())))
    if not known and (programs or polls_children(after, frames)):
        known = {child.pid for child in after.children}
    of_a_stray = not known and _waits_beyond(after, frames)
    if of_a_stray:
        known = offspring.strays
    long_s = LONG_S if is_known else PACED_S
    limits = {Beat.WROTE: ALWAYS_S if is_known else LONG_S if of_a_thread or of_a_stray else PACED_S, Beat.READ: long_s, Beat.RAN: long_s,
              Beat.RAN_BESIDE: PACED_S}  # fmt: skip
    for beat, silence_s in limits.items():
        left_s = offspring.left_s(beat, known, after.seconds, times=times)
        if left_s > 0:
            return f"waits for a process that {beat.value} a moment ago", left_s, silence_s
    left_s, silence_s = _timed(before, after, known) if is_known or programs else (0.0, 0.0)
    return (
        ("waits for a process with a time limit of its own", left_s, silence_s)
        if left_s > 0
        else (None, 0.0, 0.0)
    )


def _timed(before: KernelProcess, after: KernelProcess, known: set[int]) -> tuple[float, float]:
    """For how long a thread of these processes may still sleep, or one wait that has a limit, and in which silence that is no hang.

    Of a limit nobody knows since when, so that it is over once the silence has lasted as long.
    """
    then, naps, limits = {child.pid: child for child in before.children}, [0.0], [0.0]
    for child in after.children:
        if child.pid in known and (earlier := then.get(child.pid)):
            ends = set(earlier.threads_sleep_until_mono_ns) & set(child.threads_sleep_until_mono_ns)
            naps += [(end - after.t_mono_ns) / 1e9 for end in ends]
            limits += [child.wait_limit_s or 0.0] if child.wait_limit_s == earlier.wait_limit_s else []
    return (max(naps), PACED_S) if max(naps) > 0 else (max(limits), min(max(limits), PACED_S))


def _waits_beyond(proc: KernelProcess, frames: Stack) -> bool:
    """Whether the main thread waits for whatever comes by a pipe, a socket or a file, from whomever."""
    if not frames or has_own_limits(str(frames[0][1])):
        return False
    called = by_wchan(proc.wchan)
    comes = called is not None and bool(called.waker & (Waker.CHILD | Waker.LOCAL | Waker.OUTSIDE))
    return (comes and called is not None and called.state != "process") or polls(proc, frames) is not None


def turns_of_tools(before: KernelProcess, after: KernelProcess, frames: Stack, others: list[Stack]) -> int:
    """Number of times that children woke, between two looks, of a main thread that waits for a tool, itself or by another thread.

    What waits for good never wakes; what keeps a pace of its own does, and uses next to no CPU.
    """
    files = _files(frames)
    if not files:
        return 0
    beside = others if wakers(files[0]) & Waker.THREAD else []
    runs = any(_within(Waker.TOOL, each) for each in (files, *map(_files, beside)))
    tools = after.children if runs or polls_children(after, frames) else at_the_pipe(after)
    then, now = ({child.pid: child.turns for child in children} for children in (before.children, tools))
    return sum(turns - (then.get(pid) or turns) for pid, turns in now.items() if turns)


def lock_of(before: KernelProcess, after: KernelProcess) -> tuple[str, float] | None:
    """The wait for a lock on a file, with its holder, and how long that may take; None where the main thread waits for none."""
    then, now = before.lock_held_by, after.lock_held_by
    if then is None or now is None or now.pid != then.pid:
        return None
    who = f"waits for a lock on a file that process {now.pid} holds"
    return (f"{who} and works", PACED_S) if now.cpu_s > then.cpu_s else (who, ANSWER_S)


def _files(frames: Stack) -> list[str]:
    return [str(frame[1]) for frame in frames]


def _awaits_answer(proc: KernelProcess | KernelChild) -> bool:
    """Whether the kernel lets it wait for an answer over the network."""
    called = by_wchan(proc.wchan)
    return called is not None and Waker.OUTSIDE in called.waker


def _within(waker: Waker, files: list[str]) -> bool:
    """Whether a thread waits for it for the user's sake. Peers and its own workers torch asks itself, with limits."""
    inner, caller = within(files)
    return any(wakers(file) & waker for file in inner) and bool(caller) and not has_own_limits(caller)


def polls_children(proc: KernelProcess, frames: Stack) -> bool:
    """Whether the main thread naps in a loop of the user's that asks for processes of its own: what they do is what it does."""
    loop = _loop(frames[0]) if frames and proc.sleeps_until_mono_ns and proc.children else None
    return loop is not None and ASKS_CHILDREN.search(loop.text) is not None


def paces(before: KernelProcess, after: KernelProcess, frames: Stack) -> float:
    """Seconds of silence for which a `for` of the user's is believed to go on, where the main thread napped at both looks, each time anew.

    Work that is paced so uses next to no CPU; a poll leaves its loop by what it finds. A range comes to its end, whatever
    else is walked through may not. 0 where it is no such loop.
    """
    then, now = before.sleeps_until_mono_ns, after.sleeps_until_mono_ns
    if not then or not now or abs(now - then) < ONE_SLEEP_NS:
        return 0.0
    own = itertools.takewhile(lambda frame: is_user(str(frame[1])), frames)
    loop = next((found for frame in own if (found := _loop(frame))), None)
    if loop is None or not only_runs_out(loop.node):
        return 0.0
    return LONG_S if is_bounded(loop.node) else PACED_S


def polls(proc: KernelProcess, frames: Stack) -> str | None:
    """`with a limit` or `for ever`, where the main thread naps in a loop of the user's, or a library, that asks the world."""
    if not frames or not proc.sleeps_until_mono_ns:
        return None
    if polling_library(str(frames[0][1])):
        return "indefinitely"
    loop = _loop(frames[0])
    if loop is None or not ASKS_OUTSIDE.search(loop.text) or ASKS_INSIDE.search(loop.text):
        return None
    return "with a limit" if loop.asks_a_clock([]) else "indefinitely"
