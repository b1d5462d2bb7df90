"""Faults at system calls, by the kernel's own means: seccomp hands each call to a supervisor, which answers it.

A supervised command and all that it starts run as ever, but before a call of `WATCHED` does anything the kernel asks
here (seccomp_unotify(2)). The answer is to go on, to fail with an errno, or none until the end: a file system that
hangs. The counter of calls is exact, so an observer can be killed at its nth one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# x86-64. Those that name a file by path (with the argument that does), and those that name it by descriptor.
BY_PATH = {"open": (2, 0), "mkdir": (83, 0), "rename": (82, 1), "unlink": (87, 0), "truncate": (76, 0)}
BY_PATH_AT = {
    "openat": (257, 1),
    "mkdirat": (258, 1),
    "renameat": (264, 3),
    "renameat2": (316, 3),
    "unlinkat": (263, 1),
}
BY_DESCRIPTOR = {"write": 1, "writev": 20, "pwrite64": 18, "ftruncate": 77, "fallocate": 285, "fsync": 74}
OTHERS = {
    "wait4": 61,
    "kill": 62,
    "clone": 56,
    "clone3": 435,
    "vfork": 58,
    "execve": 59,
    "prctl": 157,
    "poll": 7,
}
PATHS = dict((*BY_PATH.values(), *BY_PATH_AT.values()))
WATCHED = (*PATHS, *BY_DESCRIPTOR.values(), *OTHERS.values())
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OPENS = (BY_PATH["open"][0], BY_PATH_AT["openat"][0])

# The second flag, since Linux 5.19: a signal does not interrupt a call that is asked about, which is one that may not know EINTR.
_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 317, 1, 8, 32
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_ALLOW, _NOTIFY, _X86_64 = 0x7FFF0000, 0x7FC00000, 0xC000003E
PR_SET_NO_NEW_PRIVS = 38


def is_possible() -> bool:
    """The numbers above are those of x86-64, and a listener needs Linux 5.5."""
    return platform.machine() == "x86_64" and kernel() >= (5, 5)


def kernel() -> tuple[int, ...]:
    """The version of this machine's."""
    return tuple(int(n) for n in platform.release().split(".")[:2])


@dataclass(frozen=True)
class Call:
    """One system call that is about to happen."""

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]

    def path(self) -> str:
        """The file that it is about, or nothing."""
        try:
            if self.number in PATHS:
                return self._text_at(self.arguments[PATHS[self.number]])
            if self.number in BY_DESCRIPTOR.values():
                return str(Path(f"/proc/{self.pid}/fd/{self.arguments[0]}").readlink())
        except OSError:
            pass
        return ""

    def writes(self) -> bool:
        """Whether it may change a file: an open that only reads does not."""
        if self.number in OPENS:
            return bool(self.arguments[1 if self.number == OPENS[0] else 2] & WRITING)
        return self.number in PATHS or self.number in BY_DESCRIPTOR.values()

    def _text_at(self, address: int) -> str:
        process = Path(f"/proc/{self.pid}")
        with (process / "mem").open("rb", 0) as memory:
            memory.seek(address)
            text = memory.read(4096).split(b"\0")[0].decode(errors="replace")
        # An absolute path replaces what stands before it.
        return str((process / "cwd").readlink() / text)


# What becomes of a call: 0 to go on, an errno to fail with, HOLD not to return.
HOLD = -1
Decide = Callable[[Call], int]


@dataclass
class Supervised:
    """A command under supervision; `release` lets all held calls fail, and no more are held."""

    command: Sequence[str]
    decide: Decide
    cwd: Path
    env: Mapping[str, str]
    stdin: Path
    calls: int = 0
    _held: list[Call] = field(default_factory=list)
    _released: bool = False
    _listener: int = -1

    def start(self) -> subprocess.Popen[bytes]:
        here, there = socket.socketpair()
        filter_ = _program(WATCHED)

        def install() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            flags = _NEW_LISTENER | (_WAIT_KILLABLE if kernel() >= (5, 19) else 0)
            listener = libc.syscall(_SECCOMP, _SET_MODE_FILTER, flags, ctypes.byref(filter_))
            if listener < 0:
                raise OSError(ctypes.get_errno(), "seccomp")
            socket.send_fds(there, [b"x"], [listener])
            os.close(listener)

        self._thread = threading.Thread(target=self._serve, args=(here,), daemon=True)
        self._thread.start()
        with self.stdin.open("rb") as stdin:
            # After the fork it calls the kernel alone, and the one other thread waits for a message.
            started = subprocess.Popen(
                self.command, cwd=self.cwd, env=self.env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=install,  # noqa: PLW1509
            )  # fmt: skip
        there.close()
        return started

    def release(self) -> None:
        """A file system that hung is gone: what waited for it fails."""
        self._released = True
        for call in self._held:
            self._answer(call, errno.EIO)

    def _serve(self, here: socket.socket) -> None:
        _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
        here.close()
        if not descriptors:
            return
        self._listener = descriptors[0]
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while not poll.poll()[0][1] & select.POLLHUP:
            self._serve_one()
        os.close(self._listener)

    def _serve_one(self) -> None:
        asked = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except OSError:  # whoever asked was killed meanwhile
            return
        id_, pid, _, number, _, _, *arguments = struct.unpack("<QIIiIQ6Q", asked)
        call = Call(id_, pid, number, tuple(arguments))
        self.calls += 1
        answer = self.decide(call)
        if answer == HOLD and not self._released:
            self._held.append(call)
        else:
            self._answer(call, max(answer, 0))

    def _answer(self, call: Call, number: int) -> None:
        reply = struct.pack("<QqiI", call.id, 0, -number, 0 if number else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, _SEND, bytearray(reply))


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def _program(numbers: Sequence[int]) -> _Program:
    """Berkeley packet filter: the architecture, then each number; all else is allowed."""
    load, equal, leave = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 4), (equal, 1, 0, _X86_64), (leave, 0, 0, _ALLOW), (load, 0, 0, 0)]
    for place, number in enumerate(numbers):
        lines.append((equal, len(numbers) - place, 0, number))
    lines += [(leave, 0, 0, _ALLOW), (leave, 0, 0, _NOTIFY)]
    array = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    return _Program(len(lines), array)


def family_of(tid: int) -> int:
    """The process that a thread belongs to; 0 if it is gone."""
    with contextlib.suppress(OSError), Path(f"/proc/{tid}/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Tgid:"))
    return 0


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
