"""What each rank's main thread was doing when it was last looked at: waiting for peers, for itself, or for the world."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from nsadiag.analysis import device, places
from nsadiag.analysis.load import CaptureEvidence, RankEvidence
from nsadiag.analysis.unended import unended
from nsadiag.evidence.blackbox import Kind
from nsadiag.evidence.records import Place
from nsadiag.evidence.sources import is_user

Doing = Literal[
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
    "python",  # runs, in Python
    "native",  # runs, in C
    "kernel",  # in the kernel, state D
    "stopped",  # by a signal, or a debugger
    "leaving",  # past its work: exit handlers, joins at exit
    "unknown",
]

# Numbers of the calls in which a thread can wait, by machine (x86_64, aarch64), with what the first argument is.
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
BY_CALL: dict[str, Doing] = {
    "futex": "lock",
    "nanosleep": "sleep",
    "clock_nanosleep": "sleep",
    "wait4": "process",
    "waitid": "process",
    "pause": "signal",
    "rt_sigsuspend": "signal",
    "rt_sigtimedwait": "signal",
    "flock": "io",
    "fsync": "io",
    "fdatasync": "io",
}
# What a wait for the device looks like from outside.
BY_DEVICE: tuple[Doing, ...] = ("python", "native", "lock", "unknown")
BY_DESCRIPTOR: dict[str, Doing] = {
    "tcp": "socket",
    "unix": "socket",
    "socket": "socket",
    "pipe": "pipe",
    "file": "io",
}

C10D = "torch/distributed/distributed_c10d.py"
TRANSFERS = re.compile(r"^(i?send|i?recv|batch_isend_irecv|(send|recv)_object_list)$")
RENDEZVOUS = re.compile(
    r"^(init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|new_subgroups\w*|split_group"
    r"|destroy_process_group|_store_based_barrier|rendezvous|_\w+_rendezvous_handler|_create_c10d_store)$"
)
# A frame of a library, by the end of its file and its function, says what everything within it is for.
BY_FRAME: tuple[tuple[str, str, Doing], ...] = (
    ("torch/utils/data/dataloader.py", r"", "loader"),
    ("threading.py", r"^_shutdown$", "leaving"),
    ("concurrent/futures/thread.py", r"^_python_exit$", "leaving"),
    ("multiprocessing/util.py", r"^_exit_function$", "leaving"),
    ("queue.py", r"(get|put|join)$", "queue"),
    ("multiprocessing/queues.py", r"", "queue"),
    ("subprocess.py", r"", "process"),
    ("multiprocessing/popen_fork.py", r"", "process"),
    ("multiprocessing/process.py", r"join$", "process"),
    ("concurrent/futures/_base.py", r"", "lock"),
    ("multiprocessing/synchronize.py", r"", "lock"),
    ("threading.py", r"(wait|acquire|join|__enter__|wait_for|_wait_for_tstate_lock)$", "lock"),
    ("multiprocessing/connection.py", r"", "pipe"),
    ("ssl.py", r"", "socket"),
    ("socket.py", r"", "socket"),
    ("http/client.py", r"", "socket"),
    ("selectors.py", r"", "socket"),
)  # fmt: skip
# The same of native frames, innermost first.
BY_NATIVE: tuple[tuple[re.Pattern[str], Doing], ...] = (
    # The sockets in `detail` are the store's; backends have their own.
    (re.compile(r"^c10d::(TCPStore|FileStore|PrefixStore|detail::|tcputil::)"), "store"),
    (
        re.compile(r"c10d::.*(::send|::recv|SendWork|RecvWork)|^gloo::transport.*(wait(Send|Recv))"),
        "transfer",
    ),
    (re.compile(r"^(c10d::|gloo::|nccl|pnccl)"), "collective"),
    (re.compile(r"PyThread_acquire_lock|_PyMutex_Lock|rlock_acquire|lock_acquire"), "lock"),
    (re.compile(r"^(os_waitpid|os_wait4|os_waitid)"), "process"),
    # Where the interpreter was stripped of its names, libc's are left.
    (re.compile(r"^(time_sleep|pysleep|clock_nanosleep|nanosleep)"), "sleep"),
    (
        re.compile(r"^(sock_recv|sock_connect|sock_accept|sock_send|select_poll|select_select|select_epoll)"),
        "socket",
    ),
    (re.compile(r"^(os_fsync|os_open|_io_FileIO|fcntl_flock|fcntl_lockf|_Py_open)"), "io"),
)
NATIVE_FRAME = re.compile(r"^    (?P<name>.+?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
THREAD = re.compile(r'^Thread (\S+) \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?')


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One rank's main thread at the last look."""

    rank: int
    doing: Doing
    place: Place | None  # innermost line of user code
    frames: tuple[Place, ...]  # the user's, innermost first
    inner: tuple[
        str, ...
    ]  # functions within the innermost user frame, innermost first, native ones where known
    call: str | None  # the system call in which it waits
    descriptor: dict[str, Any] | None  # what that call is about: kind, path or peer
    event: str | None  # name and detail of the innermost open event of the black box
    same: bool  # whether both looks show the same lines
    running: bool  # on a CPU, or ready for one
    owns_gil: bool
    source: str  # of the capture

    @property
    def waits_for_peers(self) -> bool:
        return self.doing in ("collective", "transfer", "rendezvous", "store")


def standing_of(rank: RankEvidence) -> Standing | None:
    """Where the rank stands; None if no stack of it could be had."""
    shown = [c for c in rank.captures if c.stacks]
    if not shown:
        return None
    last = shown[-1]
    main = main_thread(last)
    frames = main.get("frames", [])
    user = tuple(places.place(f["filename"], f["line"], f["name"]) for f in frames if is_user(f["filename"]))
    inner = _inner_python(frames)
    native = native_within(last)
    call = syscall_of(last.proc)
    descriptor = _descriptor(last.proc, call)
    event = open_event(rank)
    state = str(last.proc.get("state", ""))
    same = len(shown) > 1 and _lines(shown[-2]) == _lines(last)
    doing = _doing(frames, inner, native, call, descriptor, event, state)
    if doing == "lock" and not same and len(shown) > 1:
        # A signal that comes time and again puts its handler on top of itself, where all of them wait for one lock.
        same = without_repeats(_lines(shown[-2])) == without_repeats(_lines(last))
    if doing in BY_DEVICE:
        doing = device.holds_up(rank, native, running=state == "R", same=same) or doing
    return Standing(
        rank=rank.rank,
        doing=doing,
        place=user[0] if user else None,
        frames=user,
        inner=tuple(native) or tuple(f["name"] for f in inner),
        call=call[0] if call else None,
        descriptor=descriptor,
        event=event,
        same=same,
        running=state == "R",
        owns_gil=bool(main.get("owns_gil")),
        source=last.source,
    )


def main_thread(capture: CaptureEvidence) -> dict[str, Any]:
    """py-spy's main thread; empty if there is none."""
    stacks = capture.stacks
    return next((t for t in stacks if t.get("thread_name") == "MainThread"), stacks[0] if stacks else {})


def other_threads(capture: CaptureEvidence) -> list[dict[str, Any]]:
    """py-spy's other threads."""
    main = main_thread(capture)
    return [thread for thread in capture.stacks if thread is not main]


def _lines(capture: CaptureEvidence) -> list[tuple[str, int]]:
    return [(f["filename"], f["line"]) for f in main_thread(capture).get("frames", [])]


def without_repeats(lines: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The stack with each run of frames that stands there several times in a row, up to four long, but once."""
    kept: list[tuple[str, int]] = []
    for line in lines:
        kept.append(line)
        for period in range(1, 5):
            if kept[-period:] == kept[-2 * period : -period]:
                del kept[-period:]
                break
    return kept


def _inner_python(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for frame in frames:
        if is_user(frame["filename"]):
            return found
        found.append(frame)
    return found


def native_within(capture: CaptureEvidence) -> list[str]:
    """Names of all frames within the innermost user frame of the main thread, innermost first; empty without native stacks."""
    user = next((f for f in main_thread(capture).get("frames", []) if is_user(f["filename"])), None)
    names: list[str] = []
    for match in _native_frames(capture.native):
        if user and (match["name"], match["line"]) == (user["name"], str(user["line"])):
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
            inside = thread["name"] == "MainThread"
        elif inside and (frame := NATIVE_FRAME.match(line)):
            found.append(frame)
    return found


def syscall_of(proc: dict[str, Any]) -> tuple[str, int] | None:
    """The system call of the main thread by name, and its first argument; None if it runs, or we may not know."""
    words = str(proc.get("syscall") or "").split()
    if words == ["running"] and proc.get("wchan") == "hrtimer_nanosleep":
        # Whoever naps time and again may wake between two questions.
        return "clock_nanosleep", 0
    if len(words) < 2 or not words[0].isdigit():
        return None
    number = int(words[0])
    # The two tables do not overlap in what matters here: a futex is 202 on one, and accept on the other.
    column = 1 if _is_arm(proc) else 0
    name = next((n for n, row in SYSCALLS.items() if row[column] == number), None)
    return (name, int(words[1], 0)) if name else None


def _is_arm(proc: dict[str, Any]) -> bool:
    return proc.get("machine") == "aarch64"


def _descriptor(proc: dict[str, Any], call: tuple[str, int] | None) -> dict[str, Any] | None:
    if call is None or SYSCALLS[call[0]][2] != "fd":
        return None
    rows = (proc.get("fds") or {}).get("open", [])
    found: dict[str, Any] | None = next((row for row in rows if row.get("fd") == call[1]), None)
    return found


def open_event(rank: RankEvidence) -> str | None:
    """`name` or `name detail` of the innermost event that the main thread began and did not end."""
    events, names = rank.recording.events, rank.recording.names
    pid = rank.recording.header.pid if rank.recording.header else None
    for event in unended(events, pid):
        if event["kind"] not in (Kind.PROCESS, Kind.STEP):
            detail = names.get(int(event["c"]), "").split("\t")
            said = detail[2] if len(detail) > 2 else ""
            name = names.get(int(event["name"])) or str(Kind(int(event["kind"])).name).lower()
            return f"{name} {said}".strip()
    return None


def _doing(
    frames: list[dict[str, Any]],
    inner: list[dict[str, Any]],
    native: list[str],
    call: tuple[str, int] | None,
    descriptor: dict[str, Any] | None,
    event: str | None,
    state: str,
) -> Doing:
    if state in ("T", "t"):
        return "stopped"
    found = _by_torch(inner, native, event) or _by_frames(inner)
    if found is None and not any(is_user(f["filename"]) for f in frames) and frames:
        found = _by_frames(frames)
    found = found or _by_native(native)
    if found:
        return found
    if state == "D":
        return "kernel"
    return _by_kernel(call, descriptor, state, native)


def _by_torch(inner: list[dict[str, Any]], native: list[str], event: str | None) -> Doing | None:
    """What torch.distributed or autograd is doing there, if the thread is in one of them."""
    names = [
        f["name"].rpartition(".")[2]
        for f in inner
        if f["filename"].endswith((C10D, "distributed/rendezvous.py"))
    ]
    if any(RENDEZVOUS.match(name) for name in names):
        return "rendezvous"
    if any(TRANSFERS.match(name) for name in names):
        return "transfer"
    if event and event.startswith("store."):
        return "store" if inner or native else None
    waits = any(
        f["name"].endswith("wait") and "nsadiag/worker/probes/collectives.py" in f["filename"] for f in inner
    )
    if waits:
        return (
            "transfer" if event and re.match(r"(i?send|i?recv|batch_isend)\w*\.wait", event) else "collective"
        )
    if [name for name in names if name != "wrapper"]:
        return "collective"
    if any(f["name"] == "_engine_run_backward" for f in inner):
        return "collective" if _by_native(native) == "collective" else "backward"
    return None


def _by_frames(inner: list[dict[str, Any]]) -> Doing | None:
    for file, function, doing in BY_FRAME:
        if any(f["filename"].endswith("/" + file) and re.search(function, f["name"]) for f in inner):
            return doing
    return None


def _by_native(native: list[str]) -> Doing | None:
    for name in native:
        for pattern, doing in BY_NATIVE:
            if pattern.search(name):
                return doing
    return None


def _by_kernel(
    call: tuple[str, int] | None, descriptor: dict[str, Any] | None, state: str, native: list[str]
) -> Doing:
    if call is None:
        return ("native" if native else "python") if state == "R" else "unknown"
    if descriptor and descriptor.get("kind") in BY_DESCRIPTOR and call[0] not in BY_CALL:
        return BY_DESCRIPTOR[descriptor["kind"]]
    return BY_CALL.get(call[0], "unknown")
