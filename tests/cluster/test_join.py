"""Agents meet at node 0's port: those who belong together find each other, and whoever does not is told why."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from support.cluster.meeting import TOKEN, hello, place, port, refusal
from support.jobs import wait_until

from nsadiag.cluster.join import Crew, Seat, Stopped, enter, farewell, gather
from nsadiag.cluster.place import Place, address_to_bind, checked_place
from nsadiag.cluster.protocol.hello import Hello, hello_of, mismatch, named_apart
from nsadiag.cluster.protocol.tokens import TOKEN_VARIABLE
from nsadiag.errors import MachineError, UsageError

# -- who belongs together ---------------------------------------------------------------------------


def test_agents_with_the_same_task_and_versions_belong_together() -> None:
    assert mismatch(hello(0), hello(1), {}) is None
    assert hello_of(hello(1).document()) == hello(1)


@pytest.mark.parametrize(
    ("other", "words", "code"),
    [
        (hello(1, nnodes=3), "node 1 (host1) was started with --nnodes 3, and node 0 (host0) with --nnodes 2", 2),
        (hello(2), "host2 was started with --node-rank 2, of 2 nodes", 2),
        (hello(1, versions={"torch": "3"}), "node 1 (host1) has torch 3, and node 0 (host0) has torch 2", 3),
        (hello(1, versions={}), "has torch none", 3),
        (hello(1, task="u"), "node 1 (host1) was started with something else than node 0", 2),
    ],
)  # fmt: skip
def test_who_does_not_belong_is_told_why(other: Hello, words: str, code: int) -> None:
    found = mismatch(hello(0), other, {})
    assert found is not None
    assert words in found.message
    assert (found.exit_code, found.fatal) == (code, True)


def test_a_rank_that_was_given_twice_keeps_the_first() -> None:
    found = mismatch(hello(0), hello(1, agent="b", host="hostx"), {1: hello(1)})
    assert found is not None
    assert found.message == "--node-rank 1 was given to host1 and to hostx"
    assert not found.fatal


@pytest.mark.parametrize("document", [{}, {"node_rank": "x"}, hello(1).document() | {"versions": 3}])
def test_what_is_no_hello_is_none(document: dict[str, Any]) -> None:
    assert hello_of(document) is None


def test_hosts_with_one_name_are_told_apart() -> None:
    met = {0: hello(0, host="a"), 1: hello(1, host="b"), 2: hello(2, host="a")}
    assert named_apart(met) == {0: "a-node0", 1: "b", 2: "a-node2"}


# -- options ----------------------------------------------------------------------------------------


def test_one_machine_needs_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert checked_place(nnodes=None, node_rank=None, master_addr=None) is None
    assert checked_place(nnodes=1, node_rank=0, master_addr="hosta") is None
    # The job that is started has no business with it.
    assert TOKEN_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"node_rank": 1}, "--node-rank is given, and --nnodes is not"),
        ({"nnodes": 2, "master_addr": "a"}, "--nnodes needs --node-rank"),
        ({"nnodes": 2, "node_rank": 2, "master_addr": "a"}, "--node-rank is 2, of 2 nodes"),
        ({"nnodes": 2, "node_rank": 0}, "--nnodes needs --master-addr"),
        ({"nnodes": 2, "node_rank": 1, "master_addr": "a"}, "node 1 was not given the run's token"),
        ({"nnodes": 2, "node_rank": 0, "master_addr": "a", "token": "short"}, "has 5 characters"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked_place(**{"nnodes": None, "node_rank": None, "master_addr": None, **options})


def test_a_name_for_loopback_is_no_master_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    with pytest.raises(UsageError, match=r"--master-addr box is 127\.0\.1\.1 on this machine"):
        address_to_bind(place(0, 1, master_addr="box"))


def test_an_interface_names_its_address() -> None:
    assert address_to_bind(place(0, 1, local_addr="lo", master_addr="192.0.2.1")) == (
        socket.AF_INET,
        "127.0.0.1",
    )


# -- obstacles --------------------------------------------------------------------------------------


def test_who_does_not_come_is_named() -> None:
    at = place(0, port(), nnodes=3, wait_s=0.5)
    error = refusal(lambda: gather(at, hello(0, nnodes=3), lambda _: None))
    assert error.message == "nodes 1, 2 did not come within 0.5 s"
    assert f"127.0.0.1:{at.master_port}" in error.hint
    assert isinstance(error, MachineError)


def test_nobody_at_the_master_address_is_one_clear_line() -> None:
    at = place(1, port(), wait_s=0.5)
    error = refusal(lambda: enter(at, hello(1), lambda _: None))
    assert f"nobody answers at 127.0.0.1:{at.master_port} (Connection refused) after 0.5 s" in error.message


def test_an_address_that_is_none_or_another_machines_is_one_clear_line() -> None:
    unknown = refusal(
        lambda: enter(place(1, 1, master_addr="no.such.host.invalid"), hello(1), lambda _: None)
    )
    assert "--master-addr no.such.host.invalid is no address that this machine knows" in unknown.message
    elsewhere = place(0, port(), master_addr="192.0.2.1")
    error = refusal(lambda: gather(elsewhere, hello(0), lambda _: None))
    assert "192.0.2.1, which is no address of this machine" in error.message
    assert error.exit_code == 2


def test_a_port_that_another_run_has_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        at = place(0, other.getsockname()[1])
        error = refusal(lambda: gather(at, hello(0), lambda _: None))
    assert error.message == f"port {at.master_port} of 127.0.0.1 is taken"
    assert "--master-port" in error.hint
    assert error.exit_code == 3


def test_what_listens_there_but_is_no_run_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_answer_nonsense, args=(other,), daemon=True).start()
        error = refusal(lambda: enter(place(1, other.getsockname()[1]), hello(1), lambda _: None))
    assert "is no run of nsadiag" in error.message


def _answer_nonsense(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()


# -- the real thing ---------------------------------------------------------------------------------


class Gathering(threading.Thread):
    """Node 0, waiting for the others."""

    def __init__(self, at: Place, **changed: Any) -> None:
        super().__init__(daemon=True)
        self.at, self.hello = at, hello(0, **changed)
        self.said: list[str] = []
        self.crew: Crew | None = None
        self.error: BaseException | None = None
        self.start()
        wait_until(lambda: any("waiting at" in line for line in self.said) or self.error, "the meeting")

    def run(self) -> None:
        try:
            self.crew = gather(self.at, self.hello, self.said.append)
        except BaseException as error:
            self.error = error


def test_agents_meet_whatever_else_talks_to_node_0() -> None:
    at = place(0, port())
    first = Gathering(at)
    draw = random.Random(3)
    strangers = [socket.create_connection(("127.0.0.1", at.master_port)) for _ in range(60)]
    assert not _listens(at.master_port, "127.0.0.2"), "on the given address alone"
    for stranger in strangers:
        stranger.send(draw.choice([b"", b"\0\xce\xf7\x85\x3c"]) + draw.randbytes(draw.randint(1, 2000)))
    error = refusal(
        lambda: enter(place(1, at.master_port, token="quite another token"), hello(1), lambda _: None)
    )
    assert f"the run that is met at 127.0.0.1:{at.master_port} has another run token" in error.message
    assert error.exit_code == 2
    seat: Seat = enter(place(1, at.master_port), hello(1), lambda _: None)
    first.join(30)
    assert first.error is None
    assert first.crew is not None
    assert first.crew.names == {0: "host0", 1: "host1"}
    # The meeting is over as soon as all are here.
    wait_until(lambda: not _listens(at.master_port), "the end of the meeting")
    door = first.crew.hub.port
    assert _listens(door)
    assert not _listens(door, "127.0.0.2")
    farewell(first.crew, {"message": "over"})
    wait_until(lambda: (seat.link.heard("bye") or {}).get("message") == "over", "the farewell")
    seat.link.close()
    for stranger in strangers:
        stranger.close()


def _listens(at: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, at)) == 0


@pytest.mark.slow
def test_a_node_with_another_spec_ends_the_run_on_both_sides_with_one_line() -> None:
    at = place(0, port())
    first = Gathering(at)
    error = refusal(lambda: enter(place(1, at.master_port), hello(1, task="another"), lambda _: None))
    assert isinstance(error, Stopped)
    assert "node 1 (host1) was started with something else than node 0 (host0)" in error.message
    first.join(30)
    assert isinstance(first.error, Stopped)
    assert first.error.message == error.message
    assert error.exit_code == 2


def test_the_agent_itself_needs_no_torch() -> None:
    code = "import sys, nsadiag.cluster.join, nsadiag.cluster.ship; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
