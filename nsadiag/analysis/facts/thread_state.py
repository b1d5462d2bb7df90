"""States of main threads at the last snapshot: blocked on peers, on their own process, or on something outside the job.

A state is ours (`Doing`); the letter that the kernel gives a process is its `kernel_state`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from nsadiag.analysis.facts import device_queue, locations
from nsadiag.analysis.records import CaptureEvidence, RankEvidence
from nsadiag.evidence.blocking import (
    MACHINES,
    SYSCALLS,
    State,
    by_frames,
    by_kernel,
    by_native,
    by_wchan,
    syscall_name,
)
from nsadiag.evidence.documents.kernel import Descriptor, KernelProcess
from nsadiag.evidence.documents.python_stacks import MAIN_THREAD, StackFrame
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.user_code import is_user

Doing = (
    State
    | Literal[
        "python",  # runs, in Python
        "native",  # runs, in C
        "kernel",  # uninterruptible: the kernel's state D
        "stopped",  # by a signal, or a debugger
        "unknown",
    ]
)

# What a wait for the device looks like from outside.
BY_DEVICE: tuple[Doing, ...] = ("python", "native", "lock", "unknown")
TRANSFER = re.compile(r"(i?send|i?recv|batch_isend)\w*(\.wait)? ")
NATIVE_FRAME = re.compile(r"^    (?P<name>.+?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
THREAD = re.compile(r'^Thread (\S+) \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?')


@dataclass(frozen=True, kw_only=True)
class ThreadState:
    """One rank's main thread at the last snapshot."""

    rank: Annotated[int, "the rank"]
    doing: Annotated[Doing, "what it does or waits for, of a fixed list"]
    place: Annotated[Place | None, "the innermost line of user code"]
    frames: Annotated[tuple[Place, ...], "the user's lines, innermost first"]
    # functions within the innermost user frame, innermost first, native ones where known
    inner: Annotated[
        tuple[str, ...], "functions within the innermost user line, innermost first, native ones where known"
    ]
    call: Annotated[str | None, "the system call in which it waits"]
    descriptor: Annotated[Descriptor | None, "what that call is about: kind, path or peer"]
    event: Annotated[str | None, "name and detail of the innermost open event of the recording"]
    same: Annotated[bool, "whether both snapshots show the same lines"]
    running: Annotated[bool, "on a CPU, or ready for one"]
    in_kernel: Annotated[bool, "uninterruptible: held up by a driver, a disk or a page fault"]
    owns_gil: Annotated[bool, "whether it holds the interpreter lock"]
    source: Annotated[str, "the capture, in the run directory"]

    @property
    def in_both_snapshots(self) -> str:
        """The end of a claim about where the rank stands, where two snapshots show it there."""
        return ", in both snapshots" if self.same else ""

    @property
    def waits_for_peers(self) -> bool:
        return self.doing in ("collective", "transfer", "rendezvous", "store")

    @property
    def destroys_groups(self) -> bool:
        """Whether it is past its work, and takes its process groups down."""
        return any("destroy_process_group" in name for name in (*self.inner, self.event or ""))


def thread_state_of(rank: RankEvidence) -> ThreadState | None:
    """The state of the rank's main thread; None if no stack of it could be had."""
    shown = [c for c in rank.captures if c.stacks]
    if not shown:
        return None
    last = shown[-1]
    main = last.main_thread
    frames = main.frames
    user = tuple(locations.place(f.filename, f.line, f.name) for f in frames if is_user(f.filename))
    inner = _inner_python(frames)
    native = native_within(last)
    call = syscall_of(last.proc)
    descriptor = _descriptor(last.proc, call)
    event = open_event(rank)
    kernel_state = last.proc.state
    same = len(shown) > 1 and shown[-2].main_lines == last.main_lines
    doing = _doing(inner, native, call, descriptor, event, kernel_state)
    if doing in BY_DEVICE:
        doing = device_queue.holds_up(rank, native, running=kernel_state == "R", same=same) or doing
    return ThreadState(
        rank=rank.rank,
        doing=doing,
        place=user[0] if user else None,
        frames=user,
        inner=tuple(native) or tuple(f.name for f in inner),
        call=call[0] if call else None,
        descriptor=descriptor,
        event=event,
        same=same,
        running=kernel_state == "R",
        in_kernel=kernel_state == "D",
        owns_gil=main.owns_gil,
        source=last.source,
    )


def _inner_python(frames: Iterable[StackFrame]) -> list[StackFrame]:
    found: list[StackFrame] = []
    for frame in frames:
        if is_user(frame.filename):
            return found
        found.append(frame)
    return found


def native_within(capture: CaptureEvidence) -> list[str]:
    """Names of all frames within the innermost user frame of the main thread, innermost first; empty without native stacks."""
    user = next((f for f in capture.main_frames if is_user(f.filename)), None)
    names: list[str] = []
    for match in _native_frames(capture.native):
        if user and (match["name"], match["line"]) == (user.name, str(user.line)):
            return names
        names.append(match["name"])
    # The innermost user frame was not met: another moment, or a stack that only C made.
    return names if user is None else []


@functools.lru_cache(maxsize=64)
def _native_frames(text: str) -> list[re.Match[str]]:
    """The main thread's, innermost first."""
    found: list[re.Match[str]] = []
    inside = False
    for line in text.splitlines():
        thread = THREAD.match(line)
        if thread:
            if inside and found:
                break
            inside = thread["name"] == MAIN_THREAD
        elif inside and (frame := NATIVE_FRAME.match(line)):
            found.append(frame)
    return found


def syscall_of(proc: KernelProcess) -> tuple[str, int] | None:
    """The system call of the main thread by name, and its first argument; None if it runs, or we may not know."""
    words = (proc.syscall or "").split()
    if words == ["running"] and proc.wchan == "hrtimer_nanosleep":
        # Whoever naps time and again may wake between two questions.
        return "clock_nanosleep", 0
    if not words:
        # Only who may trace the process is told the call; where it sleeps in the kernel, its user is.
        row = by_wchan(proc.wchan)
        return (row.syscall, -1) if row else None
    if len(words) < 2 or not words[0].isdigit():
        return None
    name = syscall_name(int(words[0]), proc.machine or MACHINES[0])
    return (name, int(words[1], 0)) if name else None


def _descriptor(proc: KernelProcess, call: tuple[str, int] | None) -> Descriptor | None:
    if call is None or SYSCALLS[call[0]][2] != "fd":
        return None
    return next((row for row in proc.fds.open if row.fd == call[1]), None)


def open_event(rank: RankEvidence) -> str | None:
    """`name` or `name detail` of the innermost event that the main thread began and did not end."""
    for event in rank.recording.open_spans:
        # A phase has a name of the user's, which says nothing of what torch does.
        if event.kind not in (Kind.PROCESS, Kind.STEP, Kind.PHASE):
            return f"{event.name or Kind(event.kind).name.lower()} {event.detail}".strip()
    return None


def is_in_transfer(rank: RankEvidence, state: ThreadState | None) -> bool:
    """Whether the main thread is in a send or receive: by its stack; by its recording where there is no stack."""
    if state is not None:
        return state.doing == "transfer"
    return bool(TRANSFER.match(open_event(rank) or ""))


def _doing(
    inner: list[StackFrame],
    native: list[str],
    call: tuple[str, int] | None,
    descriptor: Descriptor | None,
    event: str | None,
    kernel_state: str,
) -> Doing:
    if kernel_state in ("T", "t"):
        return "stopped"
    found = _by_stacks(inner, native, event)
    if found:
        return found
    if kernel_state == "D":
        return "kernel"
    if call is None:
        return ("native" if native else "python") if kernel_state == "R" else "unknown"
    row = by_kernel(call[0], descriptor)
    return (row.state if row else None) or "unknown"


def _by_stacks(inner: list[StackFrame], native: list[str], event: str | None) -> State | None:
    """By both stacks within the user's line, and where these leave open what torch does, by the innermost open event."""
    shown, called = by_frames(inner), by_native(native)
    state = shown.state if shown else None
    if state in ("rendezvous", "transfer"):
        return state
    if event and event.startswith("store.") and (inner or native):
        return "store"
    waits = any(f.name.endswith("wait") and "nsadiag/worker/probes/" in f.filename for f in inner)
    if waits:
        return "transfer" if event and TRANSFER.match(event) else "collective"
    if state == "backward" and called and called.state == "collective":
        return "collective"
    return state or (called.state if called else None)
