"""What a process can see of itself, as plain values to print: without torch, and without a trace of its own.

What nsadiag adds by design is left out here, and nowhere else; each exclusion is a row of docs/harmless.md.
"""

import contextlib
import hashlib
import inspect
import os
import pickle
import random
import re
import signal
import sys
import threading
import types

# Rows of docs/harmless.md.
ADDED_VARIABLES = re.compile(r"HARMLESS_MARK|NSADIAG_\w+|TORCH_FR_BUFFER_SIZE|TORCH_NCCL_ENABLE_TIMING")
SERVER_THREADS = "pt_workerserver"
STACKS_SIGNAL = signal.SIGRTMIN + 11
CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}


def say(*words):
    """One line, written at once, with the rank in front where there is one."""
    rank = f"[{os.environ['RANK']}] " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    sys.stdout.write(rank + " ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def plain(value):
    """A text without addresses."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x", str(value))


def size(pickled):
    """Its length without addresses: by theirs, in decimal, torch calls the storages in it."""
    return len(re.sub(rb"\d{7,20}", b"", pickled))


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else repr(data).encode()).hexdigest()[:12]


def _added_sockets():
    folder = os.environ.get("NSADIAG_SOCKET_DIR")
    if not folder:
        return set()
    with open("/proc/net/unix") as table:
        return {f"socket:[{line.split()[6]}]" for line in table if folder in line}


def _is_added(target, sockets):
    folders = [os.environ.get(name) for name in ("NSADIAG_RUN_DIR", "NSADIAG_RING_DIR")]
    return target in sockets or "nsadiag" in target or any(f and target.startswith(f) for f in folders)


def descriptors():
    """Number and kind of every open descriptor but those that nsadiag added (numbers count: 3 is the first free one)."""
    sockets, found = _added_sockets(), []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) < 3:
                found.append((int(name), "stream"))
            elif not _is_added(target, sockets) and not target.startswith(f"/proc/{os.getpid()}/fd"):
                found.append((int(name), re.sub(r"\[?\d+\]?", "", target)))
    return found


def next_descriptor():
    """The number that the next file gets."""
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    return number


def threads():
    return sorted(thread.name for thread in threading.enumerate())


def native_threads():
    """Names that the kernel knows, without the worker server's."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(name for name in names if name != SERVER_THREADS)


def handlers():
    """What Python says of each signal, and what the kernel says."""
    told = {}
    for number in sorted(signal.valid_signals()):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            handler = signal.getsignal(number)
            told[int(number)] = getattr(handler, "__name__", str(handler))
    return told


def kernel_signals():
    """Numbers of the signals that are blocked, ignored, caught."""
    with open("/proc/self/status") as file:
        masks = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Sig"))
    added = {STACKS_SIGNAL, *CRASH_SIGNALS, 32, 33}  # those two are glibc's own
    bits = {name: int(masks[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")}
    return {
        name: [n for n in range(1, 65) if mask >> (n - 1) & 1 and n not in added]
        for name, mask in bits.items()
    }


def environment():
    """All variables but those that nsadiag added."""
    kept = {k: v for k, v in os.environ.items() if not ADDED_VARIABLES.fullmatch(k)}
    path = [p for p in kept.pop("PYTHONPATH", "").split(os.pathsep) if p and "nsadiag" not in p]
    return {**kept, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


def _signature(value):
    try:
        return plain(inspect.signature(value))
    except (TypeError, ValueError) as error:
        return type(error).__name__


def _source(value):
    try:
        return digest(inspect.getsource(value))
    except (TypeError, OSError) as error:
        return type(error).__name__


def _pickled(value):
    try:
        data = pickle.dumps(value)
        return digest(data), pickle.loads(data) is value
    except Exception as error:
        return type(error).__name__


def shape(value):
    """What an introspecting library asks of a function, class or method."""
    return (
        type(value).__name__,
        getattr(value, "__name__", None),
        getattr(value, "__qualname__", None),
        getattr(value, "__module__", None),
        _signature(value) if callable(value) else None,
        _source(value),
        _pickled(value),
        digest(plain(value.__doc__)),
        inspect.isbuiltin(value),
    )


def surface(owner, names=None):
    """Prints the shape of each public attribute of a module or class, a line each."""
    for name in sorted(names or vars(owner)):
        value = inspect.getattr_static(owner, name, None)
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(
            value, (types.FunctionType, types.BuiltinFunctionType, type, types.MethodDescriptorType)
        ):
            say(name, shape(value))


def homes(value_of, modules):
    """Prints for each name the modules that export the very same object under it."""
    for name, value in value_of.items():
        say(name, sorted(m for m in modules if vars(sys.modules[m]).get(name) is value))


def state():
    """What may be left behind by what ran so far, by name."""
    return {
        "descriptors": [kind for _, kind in descriptors()],
        "threads": threads(),
        "native threads": native_threads(),
        "handlers": handlers(),
        "kernel signals": kernel_signals(),
        "environment": environment(),
        "hooks": (sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__),
        "streams": (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "directory": os.getcwd(),
        "path": [p for p in sys.path if "nsadiag" not in p],
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "random": digest(random.getstate()),
    }


def say_changes(before, after, apart=()):
    """Prints what of the state is another than it was: how it was at the start is other programs' subject."""
    for name in before:
        one, other = before[name], after[name]
        if one == other or name in apart:
            continue
        if isinstance(one, dict):
            keys = sorted((k for k in {*one, *other} if one.get(k) != other.get(k)), key=str)
            one, other = {k: one.get(k) for k in keys}, {k: other.get(k) for k in keys}
        say("changed", name, plain(one), plain(other))
