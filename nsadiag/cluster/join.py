"""Brings the agents of a run together: node 0 waits for all, the others find it, and whoever is missing is named."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.cluster.arrivals import Arrivals
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.link import Link
from nsadiag.cluster.place import Place, address_to_bind, listen, resolved
from nsadiag.cluster.protocol.hello import Hello, hello_of, named_apart
from nsadiag.deadlines import programs
from nsadiag.errors import EXIT_ENVIRONMENT, MachineError, NsadiagError, UsageError

TICK_S = 0.2
KNOCK_S = 2.0
OTHER_FILES = 256  # that the command, its job and the meeting have open
LAST_PORT = 65535
DOOR_S = 30.0  # from the meeting to the side channel
Say = Callable[[str], None]


class Stopped(NsadiagError):
    """Node 0 has said that there will be no run, or that it is over, and why."""

    def __init__(self, message: str, hint: str = "", exit_code: int = EXIT_ENVIRONMENT) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


@dataclass(kw_only=True)
class Crew:
    """Node 0's view: who has come, by node rank, and how to speak with them."""

    hub: Hub
    arrivals: Arrivals
    hellos: dict[int, Hello]
    names: dict[int, str]
    place: Place
    address: str  # on which node 0 listens
    family: socket.AddressFamily
    turned_away: list[str] = field(default_factory=list)

    @property
    def others(self) -> list[int]:
        return sorted(rank for rank in self.hellos if rank)


@dataclass(kw_only=True)
class Seat:
    """Another node's view."""

    link: Link
    node_rank: int


class _Meeting:
    """The process in which the store is (cluster.meeting)."""

    def __init__(self, request: dict[str, Any], listener: socket.socket | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "nsadiag.cluster.meeting"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            # Where the store cannot be reached it says so many times; once, by us, is enough.
            env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
            pass_fds=(listener.fileno(),) if listener else (), start_new_session=True,
        )  # fmt: skip
        assert self._popen.stdin and self._popen.stdout
        self._unread = b""
        self._popen.stdin.write((json.dumps(request) + "\n").encode())
        self._popen.stdin.flush()

    def answers(self) -> Iterator[dict[str, Any] | None]:
        """The answers of the process, with None now and then; ends with the process."""
        assert self._popen.stdout
        out = self._popen.stdout.fileno()
        while True:
            interrupts.check()
            if not select.select([out], [], [], TICK_S)[0]:
                yield None
                continue
            data = os.read(out, 65536)
            if not data:
                return
            self._unread += data
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                yield json.loads(line)

    def last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    def close(self) -> None:
        programs.end(self._popen)
        for stream in (self._popen.stdin, self._popen.stdout, self._log):
            if stream:
                stream.close()


def gather(place: Place, hello: Hello, say: Say) -> Crew:
    """Node 0: everybody who belongs to the run, connected. Raises NsadiagError, having told those who came."""
    _make_room(place.nnodes)
    family, address = address_to_bind(place)
    store = listen(place, family, address, place.master_port)
    door = _open_door(place, family, address)
    arrivals = Arrivals()
    hub = Hub(place.token, door, take=arrivals.take)
    request = {
        "role": "host",
        "token": place.token,
        "listener": store.fileno(),
        "address": [address, place.master_port],
        "hello": hello.document(),
        "door": door.getsockname()[1],
    }
    crew = Crew(
        hub=hub, arrivals=arrivals, hellos={0: hello}, names={}, place=place, address=address, family=family
    )
    try:
        meeting = _Meeting(request, store)
        store.close()
        try:
            _meet_all(meeting, crew, place, say)
        finally:
            meeting.close()
    except BaseException as error:
        dismiss(crew, error)
        raise
    crew.names = named_apart(crew.hellos)
    return crew


def _make_room(nnodes: int) -> None:
    """A connection to each node is an open file, of which a shell's limit is often 1024. Raises MachineError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = nnodes + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise MachineError(
            f"{nnodes} nodes need {needed} open files on node 0, and its limit is {hard}",
            "raise it with ulimit -n, or in limits.conf",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open_door(place: Place, family: socket.AddressFamily, address: str) -> socket.socket:
    """For the side channel: the next port, which a firewall can be told of, or any where that is taken."""
    if place.master_port < LAST_PORT:
        with contextlib.suppress(MachineError):
            return listen(place, family, address, place.master_port + 1)
    return listen(place, family, address, 0)


def _meet_all(meeting: _Meeting, crew: Crew, place: Place, say: Say) -> None:
    deadline = time.monotonic() + place.wait_s
    told, fatal = False, None
    for answer in meeting.answers():
        if answer is None or fatal:
            # The store stays open until the one who may not join has read why.
            pass
        elif answer.get("open"):
            told = True
            say(f"waiting at {crew.address}:{place.master_port} for {_missing(place, crew)}")
        elif "met" in answer:
            met = hello_of(answer["met"])
            assert met is not None
            crew.hub.admit(met.node_rank, met.agent)
            crew.hellos[met.node_rank] = met
            say(f"node {met.node_rank} ({met.host}) is here")
        elif "refused" in answer:
            wrong = answer["refused"]
            if wrong["fatal"]:
                fatal = Stopped(wrong["message"], wrong["hint"], int(wrong["exit_code"]))
            crew.turned_away.append(wrong["message"])
            say(wrong["message"])
        else:
            raise MachineError(
                f"agents cannot meet at {crew.address}:{place.master_port}: {answer.get('failed')}"
            )
        if len(crew.hellos) == place.nnodes and all(crew.hub.heard(r, "agent") for r in crew.others):
            return
        if time.monotonic() > deadline:
            raise MachineError(
                f"{_missing(place, crew)} did not come within {place.wait_s:g} s",
                f"run the same command there, with its own --node-rank; node 0 is at {crew.address}:{place.master_port}",
            )
    if fatal:
        raise fatal
    words = meeting.last_words()
    raise MachineError(f"agents cannot meet: {'the store ended' if told else 'no store'}: {words}")


def _missing(place: Place, crew: Crew) -> str:
    absent = [
        rank for rank in range(1, place.nnodes) if not (rank in crew.hellos and crew.hub.heard(rank, "agent"))
    ]
    return f"node{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"


def dismiss(crew: Crew, error: BaseException, seconds: float = 3.0) -> None:
    """Tells those who have come that there will be no run, and closes the channel."""
    if isinstance(error, NsadiagError):
        body = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    else:
        body = {"message": "node 0 was interrupted", "hint": "", "exit_code": 130}
    farewell(crew, body, seconds)


def farewell(crew: Crew, body: dict[str, Any], seconds: float = 3.0) -> None:
    """The last note; waits for it to leave, and for the others to close."""
    crew.hub.tell("bye", body)
    deadline = time.monotonic() + seconds
    while not crew.hub.all_sent() and time.monotonic() < deadline:
        time.sleep(0.02)
    crew.hub.close()
    crew.arrivals.close()


def enter(place: Place, hello: Hello, say: Say) -> Seat:
    """Every other node: finds node 0, and is let in. Raises NsadiagError."""
    deadline = time.monotonic() + place.wait_s
    _, address = resolved(place.master_addr)
    _knock(place, address, deadline, say)
    request = {
        "role": "join",
        "token": place.token,
        "address": [address, place.master_port],
        "hello": hello.document(),
    }
    meeting = _Meeting(request)
    try:
        answer = _admission(meeting, place, deadline)
    finally:
        meeting.close()
    link = Link(place.token, (address, int(answer["door"])), place.node_rank, hello.agent)
    until = time.monotonic() + DOOR_S
    while not link.is_connected:
        interrupts.check()
        if link.refused or time.monotonic() > until:
            why = link.refused or f"its port {answer['door']} does not answer: is there a firewall?"
            link.close()
            raise MachineError(f"node 0 at {address} does not let this node in: {why}")
        time.sleep(0.02)
    return Seat(link=link, node_rank=place.node_rank)


def _knock(place: Place, address: str, deadline: float, say: Say) -> None:
    """Waits until something listens there."""
    told = False
    while True:
        interrupts.check()
        try:
            with socket.create_connection((address, place.master_port), KNOCK_S) as sock:
                # A store waits to be asked, also one whose process is still starting.
                if select.select([sock], [], [], TICK_S)[0]:
                    raise MachineError(
                        f"what listens at {place.master_addr}:{place.master_port} is no run of nsadiag",
                        "give the --master-port that node 0 says",
                    )
            return
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() > deadline:
            raise MachineError(
                f"nobody answers at {place.master_addr}:{place.master_port} ({why}) after {place.wait_s:g} s",
                "is that the address of node 0, is nsadiag running there, and does a firewall let its port through?",
            )
        if not told:
            say(f"waiting for node 0 at {place.master_addr}:{place.master_port}")
            told = True
        time.sleep(min(1.0, max(deadline - time.monotonic(), 0.01)))


def _admission(meeting: _Meeting, place: Place, deadline: float) -> dict[str, Any]:
    for answer in meeting.answers():
        if answer is not None and "door" in answer:
            return answer
        if answer is not None and "refused" in answer:
            wrong = answer["refused"]
            raise Stopped(wrong["message"], wrong["hint"], int(wrong["exit_code"]))
        if answer is not None:
            raise MachineError(
                f"cannot meet node 0 at {place.master_addr}:{place.master_port}: {answer.get('failed')}"
            )
        if time.monotonic() > deadline:
            raise MachineError(
                f"node 0 at {place.master_addr}:{place.master_port} did not answer within {place.wait_s:g} s",
                "look at what it says there; if it says nothing of this run, something else has that port",
            )
    raise UsageError(f"node 0 at {place.master_addr}:{place.master_port} has gone: {meeting.last_words()}")
