"""Motion of ranks between two captures: what each did, and which of them wait for their peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nsadiag.agent.stillness.activity import IO_RATE, STOPPED, Usage, recorded, unqueued_s, work
from nsadiag.agent.stillness.device_queue import held_up, queue_of
from nsadiag.agent.stillness.external_waits import IDLE_S, PACED_S, Stack, going_on, patience, polls_children
from nsadiag.agent.stillness.idle_consumers import idleness
from nsadiag.agent.stillness.lost_workers import lost_worker
from nsadiag.agent.stillness.offspring import Offspring
from nsadiag.agent.stillness.timed_waits import in_event_loop, limit_s, naps, waited_for
from nsadiag.evidence.blocking import by_frames, is_timer
from nsadiag.evidence.documents.kernel import NO_PROCESS, KernelChild, KernelProcess
from nsadiag.evidence.documents.python_stacks import AUTOGRAD, PythonThread, StackFrame, frames_of_main
from nsadiag.evidence.documents.training import Loader
from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import CaptureDir, RankDir, RunDir, read_json
from nsadiag.evidence.recorder import Dump, backend_of
from nsadiag.evidence.stacks import process_in, stacks_in
from nsadiag.evidence.user_code import is_user

SOME_SHARE = 0.03  # of the main thread, together with frames of it that change
FULL_SHARE = 0.2  # the same, for a rank that has a collective under way and goes on meanwhile
GPU_WORKS_PCT = 10.0
# Of other threads and children: with more, what the main thread spins for may come of them.
BESIDE_SHARE = 0.06
CALLS = ("collective", "transfer", "rendezvous")  # states in which a rank waits for its peers
CONNECT_S = 15.0  # a communicator may take so long to make, whoever it is waiting for
# The same where all ranks are there to make it, and for each of them: thousands take minutes.
CONNECT_ALL_S, CONNECT_EACH_S = 120.0, 0.05
GROWS_MIB = 1.0  # of memory between two looks: what is kept of each round is a result
# Which thread a lock waits for, or which timer a coroutine, nobody can see; many processes have one that naps for ever
# and does not matter.
HELPER_CREDIT_S = PACED_S


@dataclass(frozen=True, kw_only=True)
class Motion:
    """One rank's activity between two captures `seconds` apart."""

    rank: int
    seconds: float
    cpu_share: float  # CPU seconds a second, children included
    main_cpu_share: float = 0.0  # of the main thread alone, and of the time in which there was a CPU for it
    child_cpu_share: float = 0.0  # the same of living children, where the main thread waits for them
    frames_changed: bool  # of the main thread: any line of its stack
    functions_changed: bool = False  # of the main thread: other functions, not just other lines of them
    io_bytes: int
    grown_mib: float = 0.0  # resident memory
    stopped: bool = False  # by SIGSTOP, or a debugger
    did: str | None = None  # by the counters of the kernel; None: nothing to speak of
    gpu_pct: float | None = None  # how busy its GPU is; None where nobody could say
    events: int  # black-box records written by threads that train
    collectives: int  # issued, by the flight recorder
    wakes_in_s: float | None = (
        None  # after the second look, where it, or the child it waits for, is in one and the same timed sleep
    )
    helper_wakes_in_s: float | None = (
        None  # the same, of a thread or child that the main thread may be waiting for
    )
    limit_s: float | None = None  # how long the wait lasts at most in which it stood both times
    outside: str | None = None  # what of the world it waits for, in words
    outside_s: float = 0.0  # the silence in which that is no hang
    goes_on: str | None = None  # what a process does that it waits for, in words
    goes_on_s: float = 0.0  # after the second look, for which that may still pause
    goes_on_silence_s: float = 0.0  # the silence in which that is no hang
    idle: str | None = None  # what it waits for, as a consumer without work, in words
    idle_s: float = 0.0  # the silence in which that is no hang, as long as no rank waits for peers
    silent_s: float = 0.0  # for how long the whole job has written no event; 0 if nobody watched
    waits_for_peers: bool  # a collective is pending that only peers can complete
    lost_worker: int | None = None  # of the loader in which it waits: a process that can never go on
    loop: dict[str, Any] | None = (
        None  # of Python, that the main thread, or a child's, was seen in (loop_sampling)
    )
    loop_cpu_share: float = 0.0  # of the thread that is in it
    endless: bool = False  # that loop goes round without a change, for longer than any that gets somewhere

    @property
    def works(self) -> bool:
        """Uses the machine for something other than spinning, in a collective or in a loop of its own."""
        # What its children do helps nobody while the process itself is stopped.
        if self.spins or (self.stopped and self.main_cpu_share < SOME_SHARE):
            return False
        if self.waits_for_peers:
            # An asynchronous collective lets its rank go on; a wait for it never changes the function.
            return self.functions_changed and self.main_cpu_share > FULL_SHARE
        # A kernel of a collective that spins shows a busy GPU too, but then the rank waits for its peers.
        on_gpu = self.gpu_pct is not None and self.gpu_pct >= GPU_WORKS_PCT
        moves = self.frames_changed and self.main_cpu_share > SOME_SHARE
        did = self.did is not None and not self.is_lost
        return did or moves or on_gpu or self.child_cpu_share > SOME_SHARE

    @property
    def is_lost(self) -> bool:
        """Whether it waits for a process that can never go on: what its other threads do does not help."""
        return self.lost_worker is not None

    @property
    def spins(self) -> bool:
        """In a loop without an end, and nothing else in the process does anything that could end it."""
        beside = self.cpu_share - self.loop_cpu_share
        idle_else = beside < BESIDE_SHARE and self.io_bytes < IO_RATE * self.seconds
        return self.endless and idle_else and self.grown_mib < GROWS_MIB

    @property
    def nap_s(self) -> float:
        """Seconds for which it sleeps, or what it waits for, before another look can tell more."""
        outside_s = min(max(self.outside_s, self.idle_s) - self.silent_s, IDLE_S)
        limit_s = min(self.limit_s or 0.0, HELPER_CREDIT_S)
        goes_on_s = self.goes_on_s if self.goes_on else 0.0
        return self.wakes_in_s or self.helper_wakes_in_s or goes_on_s or max(outside_s, 0.0) or limit_s

    @property
    def doing(self) -> str:
        """For a sentence about a rank that works."""
        if self.did:
            return self.did
        if self.gpu_pct is not None and self.gpu_pct >= GPU_WORKS_PCT:
            return f"kept its GPU {self.gpu_pct:.0f} % busy"
        if self.child_cpu_share > SOME_SHARE:
            return f"waits for children that used {self.child_cpu_share:.2f} CPUs"
        return f"used {self.main_cpu_share:.2f} CPUs, at other lines each time"


def main_frames(capture: CaptureDir) -> Stack:
    """The main thread's stack as (function, file, line), to compare."""
    return _stack(frames_of_main(stacks_in(capture)))


def _event_loops(threads: list[PythonThread]) -> set[int]:
    """Those that stand in an event loop of their own."""
    return {tid for tid, frames in _frames_by_tid(threads) if in_event_loop([f.filename for f in frames])}


def _timers(threads: list[PythonThread]) -> set[int]:
    return {tid for tid, frames in _frames_by_tid(threads) if is_timer(frames)}


def _frames_by_tid(threads: list[PythonThread]) -> Iterator[tuple[int, tuple[StackFrame, ...]]]:
    return ((thread.os_thread_id, thread.frames) for thread in threads if thread.os_thread_id)


def _stack(frames: Iterable[StackFrame]) -> Stack:
    return [(frame.name, frame.filename, frame.line) for frame in frames]


def gpu_pct(gpu: dict[str, Any], pid: int) -> float | None:
    """Utilisation of the process's GPUs, by nodes/<host>/captures/NN/gpu.json; None where that does not say."""
    found = []
    for device in gpu.get("devices", []):
        processes = device.get("processes", [])
        for process in processes:
            if process.get("pid") == pid:
                share = process.get("sm_pct")
                if share is None and any(other.get("sm_pct") for other in processes):
                    share = 0.0  # the driver has samples of those that did compute
                # Without any figure the process is taken for who keeps the device busy.
                found.append(share if share is not None else device.get("utilisation_pct"))
    known = [float(share) for share in found if share is not None]
    return max(known) if known else None


def issued(fr: Dump) -> dict[tuple[str, str], int]:
    """Per group and backend, the highest sequence number this rank issued."""
    counts: dict[tuple[str, str], int] = {}
    for entry in fr.get("entries", []):
        key = str(entry["process_group"][0]), backend_of(entry)
        number = max(int(entry["collective_seq_id"]), int(entry.get("p2p_seq_id") or 0))
        counts[key] = max(counts.get(key, 0), number)
    return counts


def _issued_between(first: CaptureDir, second: CaptureDir) -> int:
    """Collectives issued between two captures; none where one of them holds no record, as a recorder may answer one look alone."""
    records = [read_json(capture.flight_recorder, {}) for capture in (first, second)]
    counts = [sum(issued(record).values()) for record in records]
    return max(counts[1] - counts[0], 0) if all(records) else 0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Notes on one rank around a pair of captures, besides what the captures themselves hold."""

    before: Usage | None = None
    after: Usage | None = None
    events: int = 0
    beside: int = 0  # events of threads that do not train
    offspring: Offspring | None = None  # of the processes below it, in this silence
    times: float = 1.0  # as long as usual that things take at the moment


def motion(rank: RankDir, looks: tuple[int, int], seen: Seen, gpus: list[dict[str, Any]]) -> Motion | None:
    """Compares two captures; None if the process could not be looked at twice. `gpus`: one document a capture."""
    a, b = rank.capture(looks[0]), rank.capture(looks[1])
    looked = process_in(a), process_in(b)
    before, after = seen.before or recorded(looked[0]), seen.after or recorded(looked[1])
    if before is None or after is None:
        return None
    procs = looked[0] or NO_PROCESS, looked[1] or NO_PROCESS
    seconds, free_s = max(after.t_s - before.t_s, 1e-3), unqueued_s(before, after)
    then, now = main_frames(a), main_frames(b)
    busy = [pct for gpu in gpus if (pct := gpu_pct(gpu, procs[1].pid)) is not None]
    stands = now if [f[:2] for f in then] == [f[:2] for f in now] else []
    others = [thread for thread in stacks_in(b) if not thread.is_main]
    own_nap_s, helper_nap_s = naps(
        *procs,
        now,
        asks_for_child=polls_children(procs[1], stands),
        loops=_event_loops(others),
        timers=_timers(others),
    )
    stacks = [_stack(thread.frames) for thread in others]
    outside, outside_s = patience(*procs, stands, stacks)
    going = going_on(*procs, stands, stacks, seen.offspring or Offspring(), seen.times)
    idle, idle_s = idleness(*procs, then, now, others)
    return Motion(
        rank=rank.rank,
        seconds=seconds,
        cpu_share=(after.cpu_s - before.cpu_s) / seconds,
        main_cpu_share=_main_cpu_s(before, after, procs) / free_s,
        child_cpu_share=_children_cpu_s(procs[0], waited_for(procs[1], stands)) / free_s,
        frames_changed=bool(then and now) and then != now,
        functions_changed=bool(then and now) and [f[:2] for f in then] != [f[:2] for f in now],
        io_bytes=after.io_bytes - before.io_bytes,
        grown_mib=(procs[1].rss_mib or 0.0) - (procs[0].rss_mib or 0.0),
        stopped=before.state in STOPPED and after.state in STOPPED,
        did=work(before, after),
        gpu_pct=min(busy) if busy else None,
        events=seen.events,
        # The recorder does not know threads: what a heartbeat issues beside the training looks the same to it.
        collectives=0 if seen.beside and not seen.events else _issued_between(a, b),
        wakes_in_s=own_nap_s,
        helper_wakes_in_s=helper_nap_s,
        limit_s=limit_s(*procs, stands),
        outside=outside,
        outside_s=outside_s,
        goes_on=going[0],
        goes_on_s=going[1],
        goes_on_silence_s=going[2],
        idle=idle,
        idle_s=idle_s,
        lost_worker=lost_worker(*procs, stands, read_rows(Loader, rank.loaders)),
        waits_for_peers=False,
    )


def _main_cpu_s(before: Usage, after: Usage, procs: tuple[KernelProcess, KernelProcess]) -> float:
    """CPU seconds of the main thread, or of the one that runs its backward on a GPU, which only captures know."""
    then, now = procs[0].main, procs[1].main
    if then and now and then.name.startswith(AUTOGRAD) and now.name.startswith(AUTOGRAD):
        return now.cpu_s - then.cpu_s
    return after.main_cpu_s - before.main_cpu_s


def _children_cpu_s(before: KernelProcess, children: Iterable[KernelChild]) -> float:
    """CPU seconds, between two looks, of these children, as the second one shows them, if they lived at both."""
    then = {child.pid: child.cpu_s for child in before.children}
    return sum(child.cpu_s - then[child.pid] for child in children if child.pid in then)


def _stands_in(rank: RankDir, looks: tuple[int, int]) -> str | None:
    """The function of torch.distributed in which the main thread stood both times; None if it is elsewhere."""
    then, now = (frames_of_main(stacks_in(rank.capture(number))) for number in looks)
    if not now or _stack(now) != _stack(then):
        return None
    row = by_frames(now[:1])
    return now[0].name if row and row.state in CALLS and "/torch/distributed/" in now[0].filename else None


def _has_none_pending(record: Dump) -> bool:
    """Whether a flight recorder answered, and knows of no call under way."""
    return "entries" in record and not queue_of(record)["entries"]


def joining(inside: dict[int, str | None], world: set[int]) -> set[int]:
    """Ranks in a call, of torch.distributed, in which some other rank is not.

    The first collective of a group makes NCCL's communicator: that spins, and no recorder has it yet.
    """
    apart = len({inside.get(rank) for rank in world}) > 1
    return {rank for rank, call in inside.items() if apart and call is not None}


def connecting(found: list[Stance], world: set[int], quiet_s: float) -> set[int]:
    """Ranks that spin where all have stood in one call, which no recorder has, for longer than making a communicator takes.

    NCCL spins in it, and init_process_group has returned without asking whether the others are there.
    """
    calls = {stance.inside for stance in found}
    agree = len(calls) == 1 and None not in calls and {stance.rank for stance in found} >= world
    idle = all(stance.records_none and not _uses_its_gpu(stance.motion) for stance in found)
    if not (agree and idle and quiet_s > CONNECT_ALL_S + CONNECT_EACH_S * len(world)):
        return set()
    return {s.rank for s in found if s.motion is not None and s.motion.main_cpu_share > FULL_SHARE}


def _uses_its_gpu(motion: Motion | None) -> bool:
    return motion is not None and motion.gpu_pct is not None and motion.gpu_pct >= GPU_WORKS_PCT


@dataclass(frozen=True, kw_only=True)
class Stance:
    """The part of two captures of one rank that has to be laid beside those of its peers, wherever they are."""

    rank: int
    motion: Motion | None  # None if the process could not be looked at twice
    queue: dict[str, Any]  # of its flight recorder, what is pending
    inside: str | None  # the function of torch.distributed in which it stood both times
    records_none: bool = False  # its flight recorder answered, and has nothing pending


def stances(
    ranks: list[RankDir],
    looks: tuple[int, int],
    seen: dict[int, Seen],
    gpus: list[dict[str, Any]] | None = None,
) -> list[Stance]:
    """Stances of ranks that live on this machine; `looks` are the numbers of the two captures."""
    return [
        Stance(
            rank=rank.rank,
            motion=motion(rank, looks, seen.get(rank.rank, Seen()), gpus or []),
            queue=dict(queue_of(record)),
            inside=_stands_in(rank, looks),
            records_none=_has_none_pending(record),
        )
        for rank in ranks
        for record in [read_json(rank.capture(looks[1]).flight_recorder, {})]
    ]


def joined(found: list[Stance], world: set[int], *, quiet_s: float = 0.0) -> list[Motion]:
    """All living ranks at once: whether one waits for its peers depends on what those issued.

    `world` holds the dead as well: they are waited for, too. `quiet_s`: for how long nothing has moved.
    """
    queues = {stance.rank: stance.queue for stance in found}
    inside = {stance.rank: stance.inside for stance in found} if quiet_s > CONNECT_S else {}
    waiting = held_up(cast("dict[int, Dump]", queues), world) | joining(inside, world)
    waiting |= connecting(found, world, quiet_s)
    return [
        dataclasses.replace(stance.motion, waits_for_peers=stance.rank in waiting, silent_s=quiet_s)
        for stance in found
        if stance.motion is not None
    ]


def motions(
    ranks: list[RankDir],
    looks: tuple[int, int],
    seen: dict[int, Seen],
    world: set[int],
    gpus: list[dict[str, Any]] | None = None,
    *,
    quiet_s: float = 0.0,
) -> list[Motion]:
    """The same where all ranks are on this machine."""
    return joined(stances(ranks, looks, seen, gpus), world, quiet_s=quiet_s)


def at_work(run: RunDir, moved: list[Motion], capture: int) -> str | None:
    """The user's line of the one rank that waits for none of its peers, as that capture shows it."""
    free = [m.rank for m in moved if not m.waits_for_peers]
    frames = main_frames(run.rank(free[0]).capture(capture)) if len(free) == 1 else []
    own = next((frame for frame in frames if is_user(str(frame[1]))), None)
    return f"{Path(str(own[1])).name}:{own[2]} in {own[0]}" if own else None
