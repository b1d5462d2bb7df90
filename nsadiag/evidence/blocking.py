"""The table of blocking calls: what a blocked thread waits in, and who can wake it, for the agent and the analysis.

Two readers ask for different halves of a row. The analysis asks for `state`, what the wait is for; the agent for `waker`,
whose life makes the wait a healthy one. A healthy wait that was called hung, or a hang that was not, is mended here.
Standard library only.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.documents.python_stacks import StackFrame

State = Literal[
    "collective",  # in a collective, or a wait for one
    "transfer",  # in a send or receive
    "rendezvous",  # creates, joins or ends a process group
    "store",  # asks the key-value store
    "backward",  # in a backward pass, and no sign of what holds it up
    "loader",  # in torch's DataLoader
    "queue",  # in queue.Queue or a multiprocessing queue
    "lock",  # in a lock, condition, event or join of a thread
    "process",  # waits for a child process
    "socket",  # reads from or writes to a socket that is not torch's
    "pipe",
    "io",  # reads from or writes to a file
    "sleep",  # a timed sleep
    "signal",  # waits for a signal, with no limit
    "leaving",  # past its work: exit handlers, joins at exit
]

OF_ITS_PROCESS: tuple[State, ...] = (
    "lock",
    "queue",
)  # what another thread of the process ends, and nobody else


class Waker(enum.Flag):
    """Everyone who can end a wait."""

    NOBODY = 0
    THREAD = enum.auto()  # another thread of the process
    TASK = enum.auto()  # any task of an event loop
    CHILD = enum.auto()  # a process that it started
    TOOL = enum.auto()  # a program that it started: no Python of its own
    LOCAL = enum.auto()  # another process of the machine, its starter for one, by what they share
    PEER = enum.auto()  # a rank of the job
    OUTSIDE = enum.auto()  # the other end of a network, with an answer
    CLIENT = enum.auto()  # anyone, with a request that may come as late as it likes
    TIMER = enum.auto()
    KERNEL = enum.auto()  # once a device has done its work


@dataclass(frozen=True, kw_only=True)
class Blocking:
    """One kind of wait: the frames, native functions or system call that show it, and what that says."""

    frames: str = ""  # the end of a Python file's path, as a pattern, without `.py`
    functions: str = ""  # of that file, by the last part of their names, as a pattern
    native: str = ""  # the beginning of a native function's name, as a pattern
    syscall: str = ""
    wchan: tuple[str, ...] = ()  # how names of the kernel functions begin in which that call sleeps
    state: State | None = None  # None: it may be any
    waker: Waker


THREAD, TASK, CHILD, TOOL, LOCAL = Waker.THREAD, Waker.TASK, Waker.CHILD, Waker.TOOL, Waker.LOCAL
PEER, OUTSIDE, CLIENT, TIMER, KERNEL = Waker.PEER, Waker.OUTSIDE, Waker.CLIENT, Waker.TIMER, Waker.KERNEL

C10D = "torch/distributed/distributed_c10d"
TRANSFERS = r"^(i?send|i?recv|batch_isend_irecv|(send|recv)_object_list)$"
RENDEZVOUS = (
    r"^(init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|new_subgroups\w*|split_group"
    r"|destroy_process_group|_store_based_barrier)$"
)
# Waits of torch, for what it started itself or for peers: it has limits of its own, and asks again and again.
TORCH = (
    Blocking(frames=C10D, functions=RENDEZVOUS, state="rendezvous", waker=PEER),
    Blocking(frames="torch/distributed/rendezvous", state="rendezvous", waker=PEER),
    Blocking(frames=C10D, functions=TRANSFERS, state="transfer", waker=PEER),
    Blocking(frames=C10D, functions=r"^(?!wrapper$)", state="collective", waker=PEER),
    # What DDP and FSDP ask all ranks before the first step.
    Blocking(
        frames="torch/distributed/utils",
        functions="^_(verify_param_shape_across_processes|sync_params_and_buffers)$",
        state="collective",
        waker=PEER,
    ),
    Blocking(frames="torch/autograd/graph", functions="^_engine_run_backward$", state="backward", waker=PEER),
    Blocking(frames="torch/utils/data/dataloader", state="loader", waker=CHILD),
)
# Of these, the one in which the main thread waits for a worker's next batch.
NEXT_BATCH = Blocking(
    frames="torch/utils/data/dataloader", functions="_try_get_data$", state="loader", waker=CHILD
)
# The host spins there, whatever its device is at, and if that waits for ever.
DEVICE = Blocking(frames=r"torch/cuda/(__init__|streams)", functions="^synchronize$", waker=KERNEL)
# Loops of servers, which call the user's code once a request has come.
SERVER = Blocking(
    frames=r"socketserver|uvicorn/server|hypercorn/\w+/run|waitress/\w+|gunicorn/\w+|aiohttp/web|tornado/ioloop|grpc/_server",
    waker=CLIENT,
)
REQUESTS = re.compile(r"/http/server\.py$")
# Libraries that nap until a file, a lock or a server lets them go on.
POLLING = re.compile(
    r"/(torch/utils/file_baton\.py|torch/utils/_filelock\.py|filelock/|fasteners/|portalocker/|huggingface_hub/|fsspec/"
    r"|s3fs/|gcsfs/|boto\w*/|urllib3/|requests/|redis/|etcd\w*/|wandb/|mlflow/|ray/|paramiko/)"
)
# torch waits for peers, also in what probes wrap around it, with limits of its own, and asks again.
OWN_LIMITS = re.compile(r"/torch/|/nsadiag/worker/")
# Waits of the standard library. For a stack the first row that fits any frame counts, so that what a wait is for stands
# above what it is made of: a queue waits by a lock.
LIBRARY = (
    Blocking(frames="threading", functions="^_shutdown$", state="leaving", waker=THREAD),
    Blocking(frames="concurrent/futures/thread", functions="^_python_exit$", state="leaving", waker=THREAD),
    Blocking(frames="multiprocessing/util", functions="^_exit_function$", state="leaving", waker=CHILD),
    Blocking(frames="queue", functions="(get|put|join)$", state="queue", waker=THREAD),
    Blocking(frames="multiprocessing/queues", state="queue", waker=CHILD | LOCAL),
    Blocking(frames="subprocess", state="process", waker=CHILD | TOOL),
    Blocking(frames="multiprocessing/popen_fork", state="process", waker=CHILD | LOCAL),
    Blocking(frames="multiprocessing/process", functions="join$", state="process", waker=CHILD | LOCAL),
    # A future is a thread's or a process's: the stack does not say.
    Blocking(frames="concurrent/futures/_base", state="lock", waker=THREAD | CHILD),
    Blocking(frames="multiprocessing/synchronize", state="lock", waker=CHILD | LOCAL),
    Blocking(
        frames="threading",
        functions="(wait|acquire|join|__enter__|wait_for|_wait_for_tstate_lock)$",
        state="lock",
        waker=THREAD,
    ),
    Blocking(frames="multiprocessing/connection", state="pipe", waker=CHILD | LOCAL),
    Blocking(frames="ssl|socket", state="socket", waker=OUTSIDE | CLIENT),
    Blocking(frames="http/client", state="socket", waker=OUTSIDE),
    Blocking(frames="selectors", state="socket", waker=CLIENT),
    # The rest of these packages. A server's loop may leave requests to threads of its own.
    Blocking(frames="threading", waker=THREAD | CLIENT),
    Blocking(frames="concurrent/futures/process", waker=CHILD),
    Blocking(frames=r"multiprocessing/\w+", waker=CHILD | LOCAL),
    Blocking(frames=r"asyncio/\w+", waker=TASK | CLIENT),
    Blocking(frames="http/server|grpc/_common", waker=CLIENT),
)
# Waits of coroutines for what is no other task's or thread's of their process; all that is not here may be.
COROUTINES = (
    Blocking(frames="asyncio/base_events", functions="serve_forever$", state="socket", waker=CLIENT),
    Blocking(frames="asyncio/tasks", functions="^sleep$", state="sleep", waker=TIMER),
    Blocking(frames="asyncio/subprocess", state="process", waker=CHILD | TOOL),
    Blocking(
        frames=r"asyncio/(streams|base_events|unix_events|selector_events|sslproto)",
        state="socket",
        waker=CLIENT | OUTSIDE,
    ),
)
# The same of native frames, innermost first.
NATIVE = (
    # Before its callers: what takes a process group down joins the threads of its own.
    Blocking(native="std::thread::join|_*pthread_(timed|clock)?join", state="lock", waker=THREAD),
    # The sockets in `detail` are the store's; backends have their own.
    Blocking(native="c10d::(TCPStore|FileStore|PrefixStore|detail::|tcputil::)", state="store", waker=PEER),
    Blocking(
        native=r".*c10d::.*(::send|::recv|SendWork|RecvWork)|gloo::transport.*(wait(Send|Recv))",
        state="transfer",
        waker=PEER,
    ),
    Blocking(native="c10d::|gloo::|nccl|pnccl", state="collective", waker=PEER),
    Blocking(
        native=".*(PyThread_acquire_lock|_PyMutex_Lock|lock_acquire)",
        state="lock",
        waker=THREAD,
    ),
    Blocking(native="os_waitpid|os_wait4|os_waitid", state="process", waker=CHILD),
    # Where the interpreter was stripped of its names, libc's are left.
    Blocking(native="time_sleep|pysleep|clock_nanosleep|nanosleep", state="sleep", waker=TIMER),
    Blocking(
        native="sock_recv|sock_connect|sock_accept|sock_send|select_poll|select_select|select_epoll",
        state="socket",
        waker=OUTSIDE | CLIENT,
    ),
    Blocking(
        native="os_fsync|os_open|_io_FileIO|fcntl_flock|fcntl_lockf|_Py_open",
        state="io",
        waker=KERNEL | LOCAL,
    ),
)
# And of the kernel. Where no state is given the call's descriptor says it.
KERNEL_CALLS = (
    Blocking(syscall="futex", wchan=("futex_",), state="lock", waker=THREAD),
    Blocking(syscall="clock_nanosleep", wchan=("hrtimer_nanosleep",), state="sleep", waker=TIMER),
    Blocking(syscall="nanosleep", state="sleep", waker=TIMER),
    Blocking(syscall="wait4", wchan=("do_wait",), state="process", waker=CHILD),
    Blocking(syscall="waitid", state="process", waker=CHILD),
    Blocking(syscall="epoll_wait", wchan=("ep_poll",), waker=CLIENT),
    Blocking(syscall="poll", wchan=("poll_schedule_timeout", "do_sys_poll"), waker=CLIENT),
    Blocking(syscall="select", wchan=("do_select",), waker=CLIENT),
    Blocking(syscall="read", wchan=("pipe_read", "anon_pipe_read"), waker=CHILD | LOCAL),
    Blocking(syscall="write", wchan=("pipe_write", "anon_pipe_write"), waker=CHILD | LOCAL),
    Blocking(syscall="accept", wchan=("inet_csk_accept",), waker=CLIENT),
    Blocking(syscall="connect", wchan=("inet_wait_for_connect",), waker=OUTSIDE),
    Blocking(syscall="recvfrom", wchan=("wait_woken", "sk_wait_data"), waker=OUTSIDE),
    Blocking(syscall="recvfrom", wchan=("unix_stream_read", "unix_stream_data_wait"), waker=LOCAL),
    Blocking(syscall="sendto", wchan=("sk_stream_wait_memory",), waker=OUTSIDE),
    Blocking(syscall="flock", wchan=("locks_lock_inode_wait",), state="io", waker=LOCAL),
    Blocking(syscall="fsync", state="io", waker=KERNEL),
    Blocking(syscall="fdatasync", state="io", waker=KERNEL),
    Blocking(syscall="rt_sigtimedwait", wchan=("do_sigtimedwait",), state="signal", waker=LOCAL),
    Blocking(syscall="rt_sigsuspend", wchan=("sigsuspend",), state="signal", waker=LOCAL),
    Blocking(syscall="pause", state="signal", waker=LOCAL),
)
# Numbers of the calls in which a thread can wait, by machine (-1: has none), with what the first argument is.
MACHINES = ("x86_64", "aarch64")
SYSCALLS: dict[str, tuple[int, int, str]] = {
    "read": (0, 63, "fd"),
    "write": (1, 64, "fd"),
    "poll": (7, -1, ""),
    "pread64": (17, 67, "fd"),
    "pwrite64": (18, 68, "fd"),
    "readv": (19, 65, "fd"),
    "writev": (20, 66, "fd"),
    "select": (23, -1, ""),
    "nanosleep": (35, 101, ""),
    "connect": (42, 203, "fd"),
    "accept": (43, 202, "fd"),
    "sendto": (44, 206, "fd"),
    "recvfrom": (45, 207, "fd"),
    "sendmsg": (46, 211, "fd"),
    "recvmsg": (47, 212, "fd"),
    "wait4": (61, 260, "pid"),
    "flock": (73, 32, "fd"),
    "fcntl": (72, 25, "fd"),
    "fsync": (74, 82, "fd"),
    "fdatasync": (75, 83, "fd"),
    "futex": (202, 98, ""),
    "clock_nanosleep": (230, 115, ""),
    "epoll_wait": (232, -1, "fd"),
    "waitid": (247, 95, "pid"),
    "openat": (257, 56, ""),
    "pselect6": (270, 72, ""),
    "ppoll": (271, 73, ""),
    "epoll_pwait": (281, 22, "fd"),
    "accept4": (288, 242, "fd"),
    "rt_sigtimedwait": (128, 137, ""),
    "pause": (34, -1, ""),
    "rt_sigsuspend": (130, 133, ""),
}
# Of the world outside the process: files of Python in which a thread waits for an answer or a child, and kernel functions.
OUTSIDE_FILES = ("/ssl.py", "/socket.py", "/http/client.py", "/subprocess.py")
OUTSIDE_WCHAN = ("wait_woken", "inet_csk_accept", "inet_wait_for_connect", "unix_stream_data_wait", "do_wait")
# One end of a named pipe waits here for the other to open it, to read or to write.
NAMED_PIPE_WCHAN = (
    "wait_for_partner", "fifo_open", "pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write",
)  # fmt: skip
SOCKET_CALLS = ("connect", "recvfrom", "sendto", "accept", "epoll_wait", "poll", "select")
# Native threads by the beginning of their names: those that serve collectives and no other wait, and those of a process
# whose backward pass may run on a device.
TRANSPORT_THREADS = ("pt_", "gloo_", "cuda", "nccl")
DEVICE_THREADS = ("pt_autograd", "pt_nccl", "cuda")
CONTENDED = [
    "0x80",
    "0x2",
]  # operation and value of the futex by which glibc waits for a mutex: FUTEX_WAIT, private
BY_DESCRIPTOR: dict[str, State] = {
    "tcp": "socket",
    "unix": "socket",
    "socket": "socket",
    "pipe": "pipe",
    "file": "io",
}


def by_frames(frames: Sequence[StackFrame]) -> Blocking | None:
    """The first row of the table, among those that know a state, that fits any of these frames of Python."""
    return next(
        (
            row
            for row in (*TORCH, *LIBRARY)
            if row.state and any(_fits(row, f.name, f.filename) for f in frames)
        ),
        None,
    )


def waits_for_device(frames: Sequence[StackFrame]) -> bool:
    """Whether any of these frames of Python waits for what a device has been given to do."""
    return any(_fits(DEVICE, frame.name, frame.filename) for frame in frames)


def by_coroutines(frames: Sequence[StackFrame]) -> Blocking | None:
    """The row of a task with these coroutines, innermost first, where it waits for nobody of its process."""
    fits = (row for row in COROUTINES if any(_fits(row, f.name, f.filename) for f in frames))
    return next(fits, None)


@functools.lru_cache(maxsize=4096)
def is_between_processes(file: str) -> bool:
    """Whether locks and queues wait there that other processes may hold."""
    return any(_is_in(row, file) for row in LIBRARY if row.state in OF_ITS_PROCESS and row.waker & LOCAL)


def is_of_loop(file: str) -> bool:
    """Whether the file is asyncio's."""
    return "/asyncio/" in file


def serves(frames: Sequence[StackFrame]) -> bool:
    """Whether a task with these coroutines is a server's own, and ends with it."""
    row = by_coroutines(frames)
    return row is COROUTINES[0] or any(is_server(f.filename) for f in frames)


def is_idle_in_pool(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread of a pool waits for work."""
    return (
        bool(frames)
        and frames[0].name == "_worker"
        and frames[0].filename.endswith("/concurrent/futures/thread.py")
    )


def is_timer(frames: Sequence[StackFrame]) -> bool:
    """Whether this is the stack of a threading.Timer before its call: the `run` of that class waits there itself."""
    names = [f.name.rpartition(".")[2] for f in frames if f.filename.endswith("/threading.py")]
    return len(names) == len(frames) and "wait run" in " ".join(names)


def by_native(names: Iterable[str]) -> Blocking | None:
    """The row of the innermost native function that has one."""
    rows = ((row, name) for name in names for row in NATIVE)
    return next((row for row, name in rows if re.match(row.native, name)), None)


def by_kernel(call: str | None, descriptor: Descriptor | None = None) -> Blocking | None:
    """The row of a system call, with the state that its descriptor tells."""
    row = next((row for row in KERNEL_CALLS if row.syscall == call), None)
    if row is not None and row.state:
        return row
    state = BY_DESCRIPTOR.get(descriptor.kind if descriptor else "")
    if call is None or state is None:
        return row
    return dataclasses.replace(row or Blocking(syscall=call, waker=Waker.NOBODY), state=state)


def syscall_name(number: int, machine: str) -> str | None:
    """The name of a system call in which a thread can wait; None of any other, and of a machine that is not in the table."""
    return _names(machine).get(number)


def mutex_address(syscall: str | None, machine: str) -> int | None:
    """The address of the pthread mutex for which a thread with this /proc/<pid>/syscall waits; Python's own locks are semaphores."""
    words = (syscall or "").split()
    if len(words) < 4 or not words[0].isdigit():
        return None
    if syscall_name(int(words[0]), machine or MACHINES[0]) != "futex":
        return None
    return int(words[1], 0) if words[2:4] == CONTENDED else None


@functools.cache
def _names(machine: str) -> dict[int, str]:
    if machine not in MACHINES:
        return {}
    column = MACHINES.index(machine)
    return {int(row[column]): name for name, row in SYSCALLS.items() if int(row[column]) >= 0}


def by_wchan(wchan: str | None) -> Blocking | None:
    """The row of a kernel function in which a thread sleeps."""
    return next((row for row in KERNEL_CALLS if wchan and wchan.startswith(row.wchan)), None)


def asleep_in(wchan: str | None) -> State | None:
    """The state of a thread of which nothing is known but the kernel function in which it sleeps; None where it runs."""
    row = by_wchan(wchan)
    if row is None:
        return None
    return row.state or ("socket" if row.syscall in SOCKET_CALLS else "pipe")


def waits_outside(frames: Iterable[StackFrame], wchan: str | None) -> bool:
    """Whether a thread waits for something outside its process, by its frames or where it sleeps."""
    return wchan in OUTSIDE_WCHAN or any(frame.filename.endswith(OUTSIDE_FILES) for frame in frames)


def is_named_pipe(wchan: str | None) -> bool:
    """Whether a thread that sleeps there waits for the other end of a named pipe."""
    return wchan in NAMED_PIPE_WCHAN


def serves_collectives(thread: str) -> bool:
    """Whether a native thread of this name does nothing but serve collectives."""
    return thread.startswith(TRANSPORT_THREADS)


def is_of_device(thread: str) -> bool:
    """Whether a native thread of this name says that a backward pass may run on a device."""
    return thread.startswith(DEVICE_THREADS)


@functools.lru_cache(maxsize=4096)
def wakers(file: str) -> Waker:
    """Everyone who can end a wait in that file, whatever its function."""
    found = (row.waker for row in (*TORCH, *LIBRARY) if _is_in(row, file))
    return functools.reduce(Waker.__or__, found, Waker.NOBODY)


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether the file is one of the standard library's on the way from its caller to a wait."""
    return any(_is_in(row, file) for row in LIBRARY)


@functools.lru_cache(maxsize=4096)
def is_lock(file: str) -> bool:
    """Whether locks, events, queues and joins wait there, between threads or processes."""
    return any(row.state in OF_ITS_PROCESS and _is_in(row, file) for row in LIBRARY)


@functools.lru_cache(maxsize=4096)
def is_loader(file: str) -> bool:
    """Whether torch's DataLoader waits there for its workers."""
    return _is_in(NEXT_BATCH, file)


def awaits_batch(function: str, file: str) -> bool:
    """Whether the frame is the DataLoader's wait for a worker's next batch."""
    return _fits(NEXT_BATCH, function, file)


@functools.lru_cache(maxsize=4096)
def is_server(file: str) -> bool:
    """Whether the file holds the loop of a server."""
    return _is_in(SERVER, file)


def awaits_requests(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread waits in the loop of a server for the next request; not in an event loop, whose tasks no stack shows."""
    files = [f.filename for f in frames]
    if any(is_of_loop(f) for f in files):
        return False
    return any(is_server(f) or REQUESTS.search(f) for f in files) or _is_manager(
        frames, "serve_forever", "accepter"
    )


def serves_a_client(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread of a multiprocessing manager answers one client, or waits for what that asks next."""
    return _is_manager(frames, "serve_client")


def _is_manager(frames: Sequence[StackFrame], *functions: str) -> bool:
    return any(
        f.name.rpartition(".")[2] in functions and f.filename.endswith("/multiprocessing/managers.py")
        for f in frames
    )


def polling_library(file: str) -> str | None:
    """The library, if that file belongs to one that naps between questions to the world."""
    found = POLLING.search(file)
    return found[1].strip("/").rpartition("/")[2] if found else None


def has_own_limits(file: str) -> bool:
    """Whether torch, or a probe around it, waits there: with limits of its own, and it asks again."""
    return OWN_LIMITS.search(file) is not None


def is_transfer(function: str, file: str) -> bool:
    """Whether the frame is torch.distributed's for a send or receive."""
    row = by_frames([StackFrame(name=function, filename=file, line=0)])
    return row is not None and row.state == "transfer"


def lets_go(file: str) -> bool:
    """Whether a thread that has its innermost frame there lets other threads have the interpreter."""
    return is_library(file) or bool(wakers(file) & PEER)


def within(files: Iterable[str]) -> tuple[list[str], str]:
    """The files of the standard library's wait on a stack, innermost first, and the file that called it."""
    inner: list[str] = []
    for file in files:
        if not is_library(file):
            return inner, file
        inner.append(file)
    return inner, ""


def _is_in(row: Blocking, file: str) -> bool:
    return re.search(rf"(?:^|/)(?:{row.frames})\.py$", file) is not None


def _fits(row: Blocking, function: str, file: str) -> bool:
    return _is_in(row, file) and re.search(row.functions, function.rpartition(".")[2]) is not None
