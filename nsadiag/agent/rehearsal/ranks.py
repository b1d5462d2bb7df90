"""Starts the ranks of a torchrun line without torchrun: they are forked from processes that have imported torch.

`python -m nsadiag.agent.rehearsal.ranks N PYTHON SCRIPT [ARG...]` (or `-m MODULE`) gives N processes the environment that
torchrun gives its ranks, and ends as torchrun does: when all have ended, or when one has failed.

A process forked from another has its hash salt, so that sets of strings have one order on all ranks and a fault that
depends on it would be hidden. Two zygotes share the ranks of a program in which it could matter: enough for two orders.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nsadiag
from nsadiag.agent.job.entry_script import NO_SCRIPT, TORCHRUN, TORCHRUN_SWITCHES, TORCHRUN_WITH_VALUE
from nsadiag.evidence.rehearsal import BESIDE
from nsadiag.evidence.rehearsal.beside import Beside, asked_beside
from nsadiag.evidence.rehearsal.namespaces import TREE, Apart

# Words of ours before the program: Python, -m, the module, the number of ranks, the ranks' Python.
PROGRAM_AT = 5
AT_A_TIME = 2  # processes beside the ranks, once these have ended
ALONE = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"}
NAME = __spec__.name if __spec__ else __name__  # also where it is run as a program
KILL_AFTER_S = 5.0
# After a rank has failed: what all of them lack is told from what one lacks.
TOGETHER_S = 0.3
READABLE_S = (
    0.15  # how long the last of the ranks stays a zombie: longer than the watch takes between two looks
)
PR_SET_CHILD_SUBREAPER = 36
PROGRAM = Path(nsadiag.__file__).parent / "worker" / "rehearsal" / "zygote.py"
# With any other option the line is torchrun's to understand.
UNDERSTOOD = {"standalone", "nnodes", "nproc-per-node", "max-restarts", "master-addr", "master-port", "rdzv-backend",
              "rdzv-endpoint", "rdzv-id", "node-rank", "module"}  # fmt: skip


def started_directly(command: Sequence[str], ranks: int | None = None) -> list[str]:
    """The line that starts the same ranks, or the command itself where it is no plain line of torchrun's.

    `ranks`: how many, in the place of what the line says.
    """
    python = _interpreter(command[0])
    if Path(command[0]).name != "torchrun" or python is None or any(map(os.environ.get, NO_SCRIPT)):
        return list(command)
    options, rest = options_of(command[1:])
    asked = str(ranks or options.get("nproc-per-node", "1"))
    plain = options.keys() <= UNDERSTOOD and options.get("nnodes", "1") in ("1", "1:1")
    if not plain or not rest or rest[0].startswith("-") or not asked.isdigit() or int(asked) < 1:
        return list(command)
    program = ["-m", *rest] if "module" in options else rest
    return [sys.executable, "-m", NAME, asked, python, *program]


def options_of(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """torchrun's own, by name, and the script with its arguments."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and (words[at].startswith("--") or words[at] == "-m"):
        word = "--module" if words[at] == "-m" else words[at]
        name, equals, value = word.removeprefix("--").replace("_", "-").partition("=")
        at += 1
        if name in TORCHRUN_WITH_VALUE and not equals and at < len(words):
            value = words[at]
            at += 1
        found[name] = "" if name in TORCHRUN_SWITCHES else value
    return found, list(words[at:])


def _interpreter(torchrun: str) -> str | None:
    """The Python that the script `torchrun` names in its first line; None where it is no script of torch's."""
    found = shutil.which(torchrun)
    if found is None:
        return None
    with open(found, "rb") as file:  # noqa: PTH123
        text = file.read(4096)
    python = text.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("#!").strip()
    is_torchs = text.startswith(b"#!") and TORCHRUN in text
    return python if is_torchs and os.access(python, os.X_OK) else None


def common_environment(ranks: int, port: int) -> dict[str, str]:
    """All ranks', as torchrun makes it."""
    one_node = {
        "GROUP_RANK": 0, "LOCAL_WORLD_SIZE": ranks, "WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1,
        "ROLE_WORLD_SIZE": ranks, "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }  # fmt: skip
    named = {"ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | {
        name: str(value) for name, value in {**one_node, **named}.items()
    }


def own_environment(rank: int) -> dict[str, str]:
    """One rank's besides."""
    return dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))


@dataclass
class Zygote:
    """A process from which ranks are forked; `awaited` is how many were asked for and have not said that they are there."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    unread: bytes = b""
    awaited: int = 0

    def ask(
        self, rank: int, command: Sequence[str], env: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """For a rank; answered when torch has been imported."""
        path = str(Path.cwd() if command[0] == "-m" else Path(command[0]).resolve().parent)
        request = {
            "rank": rank,
            "env": {**own_environment(rank), **(env or {})},
            "path": path,
            "argv": list(command),
        }
        self.socket.sendall((json.dumps({**request, "options": ["-u"], **more}) + "\n").encode())
        self.awaited += 1

    def hear(self) -> list[tuple[int, int]] | None:
        """Pids of ranks that are there now, each with its number beside the ranks (-1: it is one); None once it has ended."""
        data = self.socket.recv(1 << 16)
        *lines, self.unread = (self.unread + data).split(b"\n")
        self.awaited -= len(lines)
        told = [json.loads(line) for line in lines]
        return [(int(each["pid"]), int(each["beside"])) for each in told] if data else None


def start_zygote(python: str, environment: dict[str, str]) -> Zygote:
    """One that imports torch, and waits for requests."""
    ours, theirs = socket.socketpair()
    with theirs:
        line = [python, "-u", str(PROGRAM), str(theirs.fileno())]
        process = subprocess.Popen(line, env=environment, pass_fds=(theirs.fileno(),))
    return Zygote(process, ours)


def run(ranks: int, python: str, command: list[str], apart: Apart | None = None) -> int:
    """Runs the command on all ranks; the first code of a rank that failed, else 0.

    `apart`: what this process has entered, where processes beside the ranks can be kept apart from them.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # ranks are children of a zygote's children
    beside = asked_beside(os.environ.pop(BESIDE, "[]"), apart)
    environment = common_environment(ranks, _free_port())
    zygotes = [start_zygote(python, environment)]
    if ranks > 1 and _needs_two_salts(command):
        zygotes.append(start_zygote(python, environment))
    launch = _Launch(zygotes, beside, apart)
    try:
        for rank in range(ranks):
            zygotes[rank % len(zygotes)].ask(rank, command)
        return launch.first_failure()
    finally:
        _end(zygotes, launch.alive)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _needs_two_salts(command: Sequence[str]) -> bool:
    """Imported while the first zygote imports torch."""
    from nsadiag.source.patterns.hashes import depends_on_salt

    return command[0] == "-m" or depends_on_salt(Path(command[0]).resolve())


@dataclass
class _Launch:
    """The ranks, and what follows them. `alive` has those that have not ended: pid by pidfd.

    Ranks are not reaped here: how a process ended can be read from outside as long as it is a zombie.
    """

    zygotes: list[Zygote]
    beside: list[Beside]
    apart: Apart | None
    alive: dict[int, int] = field(default_factory=dict)
    others: dict[int, Beside] = field(default_factory=dict)  # by pidfd, those of `alive` that are no ranks
    asked: int = 0  # of `beside`
    code: int = 0

    def first_failure(self) -> int:
        """The code of the first rank that failed, once all have ended; 0 where none has."""
        poll, until = select.poll(), math.inf
        left = {zygote.socket.fileno(): zygote for zygote in self.zygotes}
        for descriptor in left:
            poll.register(descriptor, select.POLLIN)
        self._go_on()
        while (left or self.alive) and time.monotonic() < until:
            for descriptor, _ in poll.poll(None if until == math.inf else TOGETHER_S * 1000):
                if descriptor in left:
                    self.code = self.code or self._hear(left, descriptor, poll)
                else:
                    self._ended(descriptor)
                    poll.unregister(descriptor)
                if self.code and until == math.inf:
                    until = time.monotonic() + TOGETHER_S
            self._go_on()
        return self.code if self.code >= 0 else 128 - self.code

    def _hear(self, left: dict[int, Zygote], descriptor: int, poll: select.poll) -> int:
        """Takes in new processes; the exit code of a zygote that ended before it had made all of them, else 0."""
        zygote = left[descriptor]
        told = zygote.hear()
        for pid, beside in told or ():
            handle = os.pidfd_open(pid)
            self.alive[handle] = pid
            if beside >= 0:
                self.others[handle] = self.beside[beside]
            poll.register(handle, select.POLLIN)
        if told is None:
            poll.unregister(descriptor)
            del left[descriptor]
            return (zygote.process.wait() or 1) if zygote.awaited else 0
        return 0

    def _ended(self, handle: int) -> None:
        code, other = _code_of(self.alive.pop(handle)), self.others.pop(handle, None)
        if other is None:
            self.code = self.code or code
        else:
            Path(other.ended).write_text(str(code))

    def _go_on(self) -> None:
        """Has what is to follow the ranks started, and lets the zygotes go after the last."""
        are_over = not any(zygote.awaited for zygote in self.zygotes) and len(self.others) == len(self.alive)
        running = len(self.others)
        while are_over and not self.code and self.asked < len(self.beside) and running < AT_A_TIME:
            beside, apart = self.beside[self.asked], self.apart
            assert apart is not None
            room = Path(apart.room, f"beside-{self.asked}")
            room.mkdir()
            port = {"MASTER_PORT": str(_free_port()), **ALONE}
            own = dataclasses.replace(apart, room=str(room), lower=str(Path(apart.room, TREE)))
            self.zygotes[0].ask(0, beside.argv, {**port, **beside.env}, beside=self.asked, apart=dataclasses.asdict(own))  # fmt: skip
            self.asked, running = self.asked + 1, running + 1
        if self.code or self.asked == len(self.beside):
            for zygote in self.zygotes:
                with suppress(OSError):
                    zygote.socket.shutdown(socket.SHUT_WR)


def _code_of(pid: int) -> int:
    """The end of a rank: its exit code, or a signal's number below zero."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is None:
        return 0
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _end(zygotes: list[Zygote], alive: dict[int, int]) -> None:
    for zygote in zygotes:
        zygote.process.kill()
        zygote.process.wait()
    deadline = time.monotonic() + KILL_AFTER_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for handle in alive:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
        while alive and (number == signal.SIGKILL or time.monotonic() < deadline):
            ready = select.select(list(alive), [], [], max(deadline - time.monotonic(), 0.0) or None)[0]
            for handle in ready:
                del alive[handle]
    time.sleep(READABLE_S)


def main(words: list[str], apart: Apart | None = None) -> int:
    """The exit code of N PYTHON SCRIPT [ARG...]."""
    return run(int(words[0]), words[1], words[2:], apart)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
