"""Brings the agents of a run together: node 0 waits for all, the others find it, and whoever is missing is named."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.cluster.arrivals import Arrivals
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.link import Link
from nsadiag.cluster.meeting import Meeting, ask
from nsadiag.cluster.place import Place, address_to_bind, listen, resolved
from nsadiag.cluster.protocol.hello import Hello, mismatch, named_apart
from nsadiag.cluster.protocol.wire import Refused, WrongToken
from nsadiag.cluster.strangers import OTHER_FILES
from nsadiag.deadlines.deadline import Deadline
from nsadiag.errors import EXIT_ENVIRONMENT, MachineError, NsadiagError, UsageError

TICK_S = 0.2
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


def gather(place: Place, hello: Hello, say: Say) -> Crew:
    """Node 0: everybody who belongs to the run, connected. Raises NsadiagError, having told those who came."""
    _make_room(place.nnodes)
    family, address = address_to_bind(place)
    listener = listen(place, family, address, place.master_port)
    door = _open_door(place, family, address)
    arrivals = Arrivals()
    hub = Hub(place.token, door, place.nnodes, take=arrivals.take)
    crew = Crew(
        hub=hub, arrivals=arrivals, hellos={0: hello}, names={}, place=place, address=address, family=family
    )
    try:
        with contextlib.closing(Reception(crew, listener, say)) as reception:
            reception.meet_all()
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


class Reception:
    """The meeting, as node 0 holds it: who comes is let in, or hears why not."""

    def __init__(self, crew: Crew, listener: socket.socket, say: Say) -> None:
        self._crew, self._say = crew, say
        self._fatal: Stopped | None = None
        place = crew.place
        self._meeting = Meeting(listener, place.token, place.nnodes, self._decide)

    def meet_all(self) -> None:
        """Returns when all are connected. Raises MachineError, and Stopped where one does not belong to the run."""
        crew, place = self._crew, self._crew.place
        at = f"{crew.address}:{place.master_port}"
        self._say(f"waiting at {at} for {_missing(place, crew)}")
        deadline = Deadline(place.wait_s)
        while len(crew.hellos) < place.nnodes or not all(crew.hub.heard(r, "agent") for r in crew.others):
            interrupts.check()
            self._meeting.turn(TICK_S)
            if self._fatal is not None:
                raise self._fatal
            if deadline.has_passed():
                raise MachineError(
                    f"{_missing(place, crew)} did not come within {place.wait_s:g} s{self._others()}",
                    f"run the same command there, with its own --node-rank; node 0 is at {at}",
                )

    def _others(self) -> str:
        count = sum(self._meeting.refused.values())
        return f" ({count} other connections were refused)" if count else ""

    def _decide(self, hello: Hello) -> dict[str, Any]:
        crew = self._crew
        wrong = mismatch(crew.hellos[0], hello, crew.hellos)
        if wrong is not None:
            crew.turned_away.append(wrong.message)
            self._say(wrong.message)
            if wrong.fatal:
                self._fatal = Stopped(wrong.message, wrong.hint, wrong.exit_code)
            return {"refused": wrong.document()}
        if hello.node_rank not in crew.hellos:
            crew.hub.admit(hello.node_rank, hello.agent)
            crew.hellos[hello.node_rank] = hello
            self._say(f"node {hello.node_rank} ({hello.host}) is here")
        return {"door": crew.hub.port}

    def close(self) -> None:
        self._meeting.close()


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
    deadline = Deadline(place.wait_s)
    _, address = resolved(place.master_addr)
    answer = _admission(place, address, hello, deadline, say)
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


def _admission(place: Place, address: str, hello: Hello, deadline: Deadline, say: Say) -> dict[str, Any]:
    """The port to go to, once node 0 has been found. Raises NsadiagError."""
    at = f"{place.master_addr}:{place.master_port}"
    missed: list[str] = []

    def note(why: str) -> None:
        if not missed:
            say(f"waiting for node 0 at {at}")
        missed[:] = [why]

    try:
        answer = ask((address, place.master_port), place.token, hello, deadline, note)
    except WrongToken:
        raise UsageError(
            f"the run that is met at {at} has another run token",
            "give the token that node 0 was given or has printed, and a --master-port that no other run uses",
        ) from None
    except Refused:
        raise MachineError(
            f"what listens at {at} is no run of nsadiag", "give the --master-port that node 0 says"
        ) from None
    except TimeoutError:
        raise MachineError(
            f"nobody answers at {at} ({''.join(missed) or 'no answer'}) after {place.wait_s:g} s",
            "is that the address of node 0, is nsadiag running there, and does a firewall let its port through?",
        ) from None
    if "refused" in answer:
        wrong = answer["refused"]
        raise Stopped(wrong["message"], wrong["hint"], int(wrong["exit_code"]))
    return answer
