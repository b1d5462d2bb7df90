"""The place at which each call of a job stands: its thread, the user's line, what it waits in, and whether that may end by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.records import CaptureEvidence
from nsadiag.evidence.blocking import (
    State,
    Waker,
    asleep_in,
    awaits_requests,
    by_coroutines,
    by_frames,
    is_between_processes,
    is_idle_in_pool,
    is_of_device,
    is_of_loop,
    serves,
    serves_a_client,
    waits_for_device,
)
from nsadiag.evidence.documents.actors import ActorWaits, ObjectWait, RayTask, TaskWait
from nsadiag.evidence.documents.kernel import KernelThread
from nsadiag.evidence.documents.python_stacks import MAIN_THREAD, PythonThread, StackFrame
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_ours, is_user
from nsadiag.source.model import spans
from nsadiag.source.patterns.file_names import loop_asks
from nsadiag.source.polling import ASKS_OUTSIDE

Doing = State | Literal["get", "wait", "suspended", "runs", "serves", "device"]
PEERS: tuple[Doing, ...] = ("collective", "transfer", "rendezvous", "store", "backward")
CALLS: tuple[Doing, ...] = ("get", "wait")
# Parts of Ray that call the user's functions, by their files.
CALLERS = ("/ray/_private/", "/ray/util/tracing/", "/ray/train/", "/ray/_raylet", "/ray/serve/")
TRACKER = "resource_tracker"  # of multiprocessing, a child that only ever cleans up
BUSY_SHARE = 0.1  # of a CPU, by the thread that runs the call
BESIDE_SHARE = 0.3  # by all other threads and children; Ray's own need much less


@dataclass(frozen=True, kw_only=True)
class Stand:
    """One call that runs, or a driver, at the second capture."""

    number: int
    task: RayTask | None
    doing: Doing
    place: Place | None = None  # the user's innermost line
    frames: tuple[Place, ...] = ()  # the user's, innermost first
    inner: str = ""  # the function below that line in which it is
    thread: int = 0
    awaits: ObjectWait | None = None
    same: bool = True  # the same lines in both captures
    cpu_share: float = 0.0
    beside_share: float = 0.0
    limit: bool = False  # its wait has a time limit
    helpers: bool = False  # a thread beside it could act
    main: bool = False  # in the main thread: no other call can run beside it
    sleeps_s: float = 0.0  # until it wakes by itself
    first: bool = False  # Python's main thread
    coroutine: int = 0  # a task of an event loop, which runs in its thread
    givers: tuple[int, ...] = ()  # tasks and threads of its process that could end its wait
    joins: bool = False  # it waits for these tasks
    local: bool = False  # it waits for a lock, a queue or tasks of its event loop
    between: bool = False  # its lock or queue is one between processes
    source: str = ""

    @property
    def key(self) -> str:
        """One for each stand."""
        return f"{self.number}:{self.task.id if self.task else self.coroutine or self.thread}"

    @property
    def works(self) -> bool:
        """Whether it did something between the captures."""
        if self.doing == "serves":
            return self.cpu_share > BUSY_SHARE
        if self.doing in (*PEERS, *CALLS, "device"):
            return not self.same
        beside = self.beside_share > BESIDE_SHARE
        return (
            self.cpu_share > BUSY_SHARE
            or beside
            or (not self.same and (self.doing != "sleep" or self.task is None))
        )


@dataclass(frozen=True, kw_only=True)
class Stands:
    """All of a job."""

    rows: tuple[Stand, ...]
    blind: tuple[int, ...] = ()  # processes whose stacks could not be had

    def of(self, number: int) -> list[Stand]:
        """Those of one process."""
        return [stand for stand in self.rows if stand.number == number]


def stands_of(job: ActorJob) -> Stands:
    """The stands of every process; a process in which no call runs has none."""
    rows: list[Stand] = []
    blind = []
    for number in job.processes:
        captures = job.captures(number)
        if captures:
            rows += _of_process(job, number, captures)
        else:
            blind.append(number)
    return Stands(rows=tuple(rows), blind=tuple(blind))


def _of_process(job: ActorJob, number: int, captures: tuple[CaptureEvidence, ...]) -> Iterator[Stand]:
    if job.has_roles:
        # No call has to be known by name: whatever a thread of the user's does is its role's work.
        for thread in captures[-1].stacks:
            mine = thread.is_main or any(is_user(f.filename) for f in thread.frames)
            if mine or serves_a_client(thread.frames):
                yield from _or_its_tasks(job, number, _stand(job, number, None, thread, captures), thread)
        return
    threads = [t for t in captures[-1].stacks if _runs_a_call(t, job.processes[number].driver)]
    left = job.running(number)
    if job.processes[number].driver:
        left = [t for t in job.ray.tasks if t.kind == "DRIVER_TASK"]
    for thread in threads:
        task = next((t for t in reversed(left) if _is_of(thread, t)), None)
        if task is not None:
            left.remove(task)
        yield _stand(job, number, task, thread, captures)
    for task in left:
        if task.kind != "DRIVER_TASK":
            _, share = _shares(captures, -1)
            yield Stand(
                number=number, task=task, doing="suspended", beside_share=share, source=_source(captures[-1])
            )


def _or_its_tasks(job: ActorJob, number: int, stand: Stand, thread: PythonThread) -> Iterator[Stand]:
    """The stand of a thread; of one that runs an event loop with the tasks, where these are known."""
    waits = job.waits.get(number)
    tasks = [t for t in waits.tasks or () if t.thread == stand.thread] if waits else []
    inside = itertools.takewhile(lambda f: not is_of_loop(f.filename), thread.frames)
    if not tasks:
        yield stand
        return
    if any(is_user(f.filename) for f in inside):
        yield stand  # the loop is held up by what it calls
    elif listens(job, number, stand.thread):
        yield replace(stand, doing="serves")
    for task in tasks:
        yield _of_coroutine(job, task, stand)


def listens(job: ActorJob, number: int, thread: int) -> bool:
    """Whether that thread waits for clients that may yet come."""
    waits, captures = job.waits.get(number), job.captures(number)
    fds = {w.fd for w in waits.sockets if w.thread == thread} if waits else set()
    return any(r.state == "LISTEN" and r.fd in fds for c in captures[-1:] for r in c.proc.fds.open)


def _of_coroutine(job: ActorJob, task: TaskWait, loop: Stand) -> Stand:
    waits, waited = job.waits.get(loop.number), job.waited.get(loop.number)
    places = tuple(_place(f, waits.lines if waits else None) for f in task.frames if is_user(f.filename))
    inner = list(itertools.takewhile(lambda f: not is_user(f.filename), task.frames))
    row = by_coroutines(inner)
    doing: Doing = "serves" if serves(task.frames) else row.state if row and row.state else "lock"
    earlier = next((t for t in (waited.tasks or () if waited else ()) if t.task == task.task), None)
    same = earlier is not None and (earlier.frames, earlier.future) == (task.frames, task.future)
    return replace(
        loop, doing=doing, place=places[0] if places else None, frames=places, inner=inner[-1].name if inner else "",
        same=same, coroutine=task.task, givers=task.givers, joins=task.joins, first=False, awaits=None, sleeps_s=0.0,
        local=task.joins or (bool(inner) and all(is_of_loop(f.filename) for f in inner)),
    )  # fmt: skip


def _runs_a_call(thread: PythonThread, driver: bool) -> bool:
    """Whether Ray called the user's function in it; of a driver, the main thread."""
    own = [index for index, f in enumerate(thread.frames) if is_user(f.filename)]
    if not own:
        return False
    if driver:
        return thread.thread_name == MAIN_THREAD
    outside = thread.frames[own[-1] + 1 :]
    return any(part in f.filename for f in outside for part in CALLERS)


def _is_of(thread: PythonThread, task: RayTask) -> bool:
    if task.kind == "DRIVER_TASK":
        return True
    return any(f.name.rpartition(".")[2] == task.method for f in thread.frames)


def _stand(
    job: ActorJob,
    number: int,
    task: RayTask | None,
    thread: PythonThread,
    captures: tuple[CaptureEvidence, ...],
) -> Stand:
    capture = captures[-1]
    tid = thread.os_thread_id or 0
    waits = job.waits.get(number)
    awaits = next((w for w in waits.objects if w.thread == tid), None) if waits else None
    # Without its values the stack does not say for which objects it waits, nor for how long.
    blind = awaits is None and (call := _call_of_ray(thread))
    if blind:
        awaits = ObjectWait(thread=tid, call=call or "get", unread=1)
    kernel = next((row for row in capture.proc.threads if row.tid == tid), None)
    # Of a rank that is recorded, what stands around a call for it is no call.
    frames = [f for f in thread.frames if not is_ours(f.filename)]
    inner = list(itertools.takewhile(lambda f: not is_user(f.filename), frames))
    doing = _doing(inner, awaits, kernel)
    own, beside = _shares(captures, tid)
    if job.has_roles and awaits_requests(inner):
        doing = "serves"
    if doing == "backward":
        doing = _in_backward(capture, kernel, own, beside)
    places = tuple(_place(f, waits.lines if waits else None) for f in thread.frames if is_user(f.filename))
    earlier = next((t for t in captures[0].stacks if t.os_thread_id == tid), None)
    same = _is_same(job, number, tid, awaits) and earlier is not None and earlier.lines == thread.lines
    if job.has_roles and by_frames(inner) is None and not _slept_alike(captures, tid):
        same = False
    same = same or (doing == "sleep" and earlier is not None and _naps_again(job, earlier, thread))
    same = same and _value(job.waited, number, tid) == _value(job.waits, number, tid)
    limit = awaits.limit_s is not None if awaits else _has_limit(kernel) and doing not in PEERS
    limit = limit or bool(blind)
    return Stand(
        number=number, task=task, doing=doing, place=places[0] if places else None, frames=places,
        inner=next((f.name for f in reversed(inner) if not _is_wrapper(f)), ""), thread=tid, awaits=awaits,
        same=same, cpu_share=own, beside_share=beside,
        limit=limit, helpers=_has_helpers(job, capture, tid), main=thread.is_main and not job.has_roles, sleeps_s=_sleeps_s(capture, kernel),
        first=thread.is_main, between=any(is_between_processes(f.filename) for f in inner), source=_source(capture),
    )  # fmt: skip


def _naps_again(job: ActorJob, earlier: PythonThread, thread: PythonThread) -> bool:
    """Whether it asks the world again and again: at the one capture it slept, at the other it was elsewhere in that loop."""
    then, now = ([f for f in t.frames if is_user(f.filename)] for t in (earlier, thread))
    then = then[max(len(then) - len(now), 0) :]  # without what the loop called
    file = job.cell.code.file(now[0].filename) if job.has_roles and now and then else None
    loop = next(iter(file.loops_around(now[0].line)), None) if file else None
    return (
        loop is not None
        and [(f.name, f.filename) for f in then] == [(f.name, f.filename) for f in now]
        and [f.line for f in then[1:]] == [f.line for f in now[1:]]
        and spans(loop, then[0].line)
        and loop_asks(job.cell.code, _place(now[0], None), ASKS_OUTSIDE)
    )


def _in_backward(capture: CaptureEvidence, kernel: KernelThread | None, own: float, beside: float) -> Doing:
    """The state within a backward pass: on a CPU, who computes nothing in it waits for gradients of its peers."""
    if own > BUSY_SHARE:
        return "runs"
    on_device = any(is_of_device(row.name) for row in capture.proc.threads)
    asleep = kernel is not None and kernel.state == "S" and "futex" in (kernel.wchan or "")
    return "collective" if asleep and beside <= BUSY_SHARE and not on_device else "backward"


def _call_of_ray(thread: PythonThread) -> str | None:
    """`get` or `wait`, where it stands in the one or the other."""
    found = (f.name for f in thread.frames if f.filename.endswith("ray/_private/worker.py"))
    return next((name for name in found if name in ("get", "wait")), None)


def _is_same(job: ActorJob, number: int, tid: int, awaits: ObjectWait | None) -> bool:
    """Whether it waited for the same objects at the first capture: an id is that of one call, and of no other."""
    then = job.waited.get(number)
    before = next((w for w in then.objects if w.thread == tid), None) if then else None
    return awaits is None or not awaits.objects or (before is not None and before.objects == awaits.objects)


def _doing(inner: list[StackFrame], awaits: ObjectWait | None, kernel: KernelThread | None) -> Doing:
    if awaits is not None:
        return "get" if awaits.call == "get" else "wait"
    row = by_frames(inner)
    if row is not None and row.state:
        return row.state
    if waits_for_device(inner):
        return "device"
    if kernel is None or kernel.state == "R":
        return "runs"
    if kernel.sleeps_until_mono_ns:
        return "sleep"
    return asleep_in(kernel.wchan) or "runs"


def _value(waits: Mapping[int, ActorWaits], number: int, tid: int) -> str | None:
    """The digest of its variables: a loop that asks for the next file is where it was, and has got on."""
    known = waits.get(number)
    return (known.values or {}).get(str(tid)) if known else None


def _slept_alike(captures: tuple[CaptureEvidence, ...], tid: int) -> bool:
    """Whether the kernel had it in the same kind of wait at both captures; who naps wants the interpreter in between."""
    rows = [next((r for r in c.proc.threads if r.tid == tid), None) for c in (captures[0], captures[-1])]
    kinds = [_doing([], None, row) for row in rows]
    return kinds[0] == kinds[1]


def _sleeps_s(capture: CaptureEvidence, kernel: KernelThread | None) -> float:
    until = kernel.sleeps_until_mono_ns if kernel else None
    return max((until - capture.proc.t_mono_ns) / 1e9, 0.0) if until else 0.0


def _has_limit(kernel: KernelThread | None) -> bool:
    return kernel is not None and bool(kernel.waits_until_mono_ns or kernel.wait_limit_s)


def _is_wrapper(frame: StackFrame) -> bool:
    return frame.name.rpartition(".")[2] in ("wrapper", "auto_init_wrapper", "inner", "decorate_context")


def _has_helpers(job: ActorJob, capture: CaptureEvidence, tid: int) -> bool:
    """Whether a Python thread beside that one, not Ray's own, could act by itself; of roles, one that has no stand."""
    for thread in capture.stacks:
        if thread.os_thread_id == tid or not thread.frames:
            continue
        if job.has_roles and (
            awaits_requests(thread.frames)
            or is_idle_in_pool(thread.frames)
            or serves_a_client(thread.frames)
            or any(is_user(f.filename) for f in thread.frames)
        ):
            continue
        if all(part not in f.filename for f in thread.frames for part in CALLERS) and not thread.is_main:
            row = by_frames(thread.frames)
            if row is None or bool(row.waker & ~Waker.THREAD):
                return True
    known = {process.pid for process in job.ray.processes} if job.has_roles else ()
    return any(
        child.is_alive and child.pid not in known and TRACKER not in child.command
        for child in capture.proc.children
    )


def _shares(captures: tuple[CaptureEvidence, ...], tid: int) -> tuple[float, float]:
    """CPU seconds a second of that thread, and of the rest of the process with its children, but for what spins."""
    first, last = captures[0].proc, captures[-1].proc
    seconds = (last.t_mono_ns - first.t_mono_ns) / 1e9
    if seconds <= 0:
        return 0.0, 0.0
    then = {row.tid: row.cpu_s for row in first.threads}
    used = {row.tid: row.cpu_s - then[row.tid] for row in last.threads if row.tid in then}
    spinning = {thread.os_thread_id for thread in captures[-1].stacks if _spins(thread)} - {tid}
    children = {row.pid: row.cpu_s for row in first.children}
    beside = (
        last.cpu_s - first.cpu_s - used.get(tid, 0.0) - sum(used.get(each or 0, 0.0) for each in spinning)
    )
    beside += sum(row.cpu_s - children[row.pid] for row in last.children if row.pid in children)
    return used.get(tid, 0.0) / seconds, max(beside, 0.0) / seconds


def _spins(thread: PythonThread) -> bool:
    return waits_for_device(list(itertools.takewhile(lambda f: not is_user(f.filename), thread.frames)))


def _place(frame: StackFrame, lines: dict[str, str] | None) -> Place:
    code = (lines or {}).get(f"{frame.filename}:{frame.line}")
    return Place(file=frame.filename, line=frame.line, function=frame.name.rpartition(".")[2], code=code)


def _source(capture: CaptureEvidence) -> str:
    return f"{capture.source}/py_spy.json"
