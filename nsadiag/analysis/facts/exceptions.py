"""Exceptions: the first of a chain, its line, and those that only report the loss of a peer."""

from __future__ import annotations

import re

from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.texts.error_causes import is_its_own, last_error
from nsadiag.analysis.ingest.messages.tracebacks import CUT
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_user

# What a rank says when a peer has gone, or kept it waiting for too long: consequences, never causes.
FOLLOWS_A_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|recvbytes failed|sendbytes failed|failed to recv"
    r"|remote process exited|ncclremoteerror|ncclsystemerror|nccl communicator was aborted|timed out waiting|timeout caused pair closure"
    r"|socket recv failed while polling|closed by remote peer|timed out in blocking wait|wait timeout|socket timeout|heartbeat|store.*(closed|timeout)|exceed(ed)? timeout|watchdog|failed to pass monitoredBarrier"
    r"|reached monitoredBarrier, but received errors"
    r"|^cancelled$",  # vLLM's, of a worker whose executor shuts down
    re.IGNORECASE,
)
# Between ranks, and between a rank and its own processes; our probes stand in between where the user waits for a Work.
OF_SOCKETS = ("ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError")
TO_PEERS = re.compile(r"/torch/|/multiprocessing/|/deepspeed/|/mpi4py/|/nsadiag/worker/")
FOLLOWER_TYPES = (
    "DistNetworkError", "DistStoreError", "SignalException", "KeyboardInterrupt",
    # Ray's, of whoever asked a process that is gone.
    "ActorDiedError", "RayActorError", "ActorUnavailableError", "WorkerCrashedError", "OwnerDiedError", "NodeDiedError",
)  # fmt: skip
# What a collective says when it met another one than it expected.
OF_A_COLLECTIVE = re.compile(
    r"enforce(notmet| fail)|\bgloo\b|\bnccl|detected mismatch|op\.preamble|processgroup", re.IGNORECASE
)
# A loader's worker hands its exception on as text.
ORIGINAL = re.compile(r"Original Traceback \(most recent call last\):\n(?P<text>.*)", re.DOTALL)
TEXT_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
GPU_OOM = re.compile(
    r"(cuda|hip|xpu|mps\w*)( error:)? ?(backend )?out of memory|cuda malloc failed|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cuda failure (\d+ )?'out of memory'|failed to cuda (calloc|malloc)",
    re.IGNORECASE,
)
HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc"
)
LONG, SHORT = 200, 130  # characters: a GPU without memory lists all processes that have some
# A mismatched collective hands on a size that was never one.
ABSURD = re.compile(r"more than 1EB|\d{4,}(\.\d+)? (TiB|PiB)")

# What torch's loader says of a worker of its own that has ended.
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ?[\d, ]+\) (?P<end>is killed by signal: [^.]*|exited unexpectedly[^.]*)"
)

# What a kernel did is told by whatever call comes next.
LATE = re.compile(
    r"CUDA error: (device-side assert|an illegal (memory access|instruction)|misaligned address|unspecified launch failure)",
    re.IGNORECASE,
)
DEVICE_ASSERT = re.compile(
    r"^\S+\.cuh?:\d+: (?P<kernel>.+?): block: .*? Assertion `(?P<what>.+?)` failed", re.MULTILINE
)


def is_cut(exception: Cause) -> bool:
    """Whether its last line is not in the log, so that nothing says what it is."""
    return exception.message == CUT


def follows_a_peer(exception: Cause) -> bool:
    """Whether the exception only says that a peer is gone, or is cut before it says anything: then it may."""
    message = exception.message
    if is_cut(exception):
        return True
    says_so = exception.type in FOLLOWER_TYPES or words(FOLLOWS_A_PEER, message)
    return bool(says_so) and not is_its_own(exception)


def words(pattern: re.Pattern[str], text: str) -> str:
    """The words of the text that the pattern finds; empty where it finds none."""
    found = pattern.search(text)
    return found[0] if found else ""


def is_of_the_world(exception: Cause) -> bool:
    """Whether it is of a socket of the user's own, or of a library's, as HTTP clients have: who is at its other end may be no peer."""
    files = [frame.file for frame in exception.frames]
    if (
        not files
        or is_cut(exception)
        or is_of_a_collective(exception)
        or any(TO_PEERS.search(file) for file in files)
    ):
        return False
    # What C++ raises is a RuntimeError, at the user's line.
    return not is_user(files[-1]) or exception.type in OF_SOCKETS


def first_of(exception: Cause) -> Cause:
    """The exception that it was raised from; and the one on its way up when a clean-up failed, for want of a peer or for its own sake."""
    current = exception
    while (earlier := current.cause) and earlier.frames:
        if LOST_WORKER.search(current.message):
            break  # a connection that was refused then was one to the worker, and to no peer
        is_first = earlier.meant or earlier.displaced
        if not is_first and (not follows_a_peer(current) or follows_a_peer(earlier)):
            break
        current = earlier
    return current


def is_of_a_collective(exception: Cause) -> bool:
    """Whether the backend's own words say that ranks met in different collectives."""
    return exception.type == "DistBackendError" or bool(words(OF_A_COLLECTIVE, exception.message))


def place_of(exception: Cause) -> Place | None:
    """The innermost user line: of the loader's worker that raised it, of the traceback, of the call that it left."""
    original = ORIGINAL.search(exception.message)
    if original:
        found = [m for m in TEXT_FRAME.finditer(original["text"]) if is_user(m["file"])]
        if found:
            return locations.place(found[-1]["file"], int(found[-1]["line"]), found[-1]["function"])
    return locations.of_exception(exception) or locations.of_text(exception.place)


def headline(exception: Cause) -> str:
    """Its type and first line, in whole sentences where it is long; of one that a loader's worker raised, the worker's own last line."""
    message = exception.message.strip()
    original = ORIGINAL.search(message)
    if original:
        last = original["text"].strip().splitlines()[-1].strip()
        return f"{last} (in a worker of its DataLoader)"[:300]
    first, *more = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    # "Error(s) in loading state_dict for Net:" says nothing yet.
    first = f"{first} {more[0]}" if first.endswith(":") and more else first
    end = first.rfind(". ", 0, SHORT) if len(first) > LONG else -1
    said = f"{exception.type}: {first[:end] if end > 0 else first}"
    if last := last_error(exception):
        return f"{exception.type}: {last}"
    return said[:300]


def is_told_late(exception: Cause) -> bool:
    """Whether it is of a kernel that was launched before the line that raised."""
    return bool(LATE.search(exception.message))


def says_assert(exception: Cause) -> bool:
    """Whether an assertion in a kernel failed: of its inputs, then."""
    return "device-side assert" in exception.message


def device_assert(stderr: str) -> str | None:
    """The words of a kernel's own assertion, and the kernel."""
    found = DEVICE_ASSERT.search(stderr)
    return f"{found['kernel']}: assertion `{found['what']}` failed"[:300] if found else None


def is_same(one: Cause, other: Cause) -> bool:
    """Whether both tell of one exception, as it passed two places."""
    return (one.type, one.message) == (other.type, other.message)


def memory_of(exception: Cause) -> str | None:
    """`gpu` or `host`, if an allocator says that it has nothing left to give."""
    message = exception.message
    if GPU_OOM.search(message) and not ABSURD.search(message):
        return "gpu"
    if exception.type == "MemoryError" or HOST_OOM.search(message):
        return "host"
    return None
