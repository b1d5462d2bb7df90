"""The side channel: who does not know the token is refused, whatever bytes come, and what agents say arrives all the same."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster.meeting import TOKEN, files
from support.jobs import GIVE_UP_S, wait_until

from nsadiag.cluster.arrivals import CHUNK_BYTES, Arrivals
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.link import Link, Lost
from nsadiag.cluster.protocol.clock import Clock, Reading
from nsadiag.cluster.protocol.wire import MOST_NOTE, SIZES, ClientGreeting, Frames, Refused, ServerGreeting
from nsadiag.cluster.ship import Shipment
from nsadiag.deadlines.deadline import Deadline


def soon() -> Deadline:
    return Deadline(GIVE_UP_S)


# -- the wire ---------------------------------------------------------------------------------------


def greeted(server_token: str = TOKEN, client_token: str = TOKEN) -> tuple[Frames, Frames]:
    """Both ends of a connection, the server's first."""
    server, client = ServerGreeting(server_token), ClientGreeting(client_token, 3)
    hello, _, _ = client.feed(server.outgoing)
    done = server.feed(hello)
    assert done is not None
    assert done[0] == 3
    _, frames, _ = client.feed(done[1])
    assert frames is not None
    return done[2], frames


def test_both_sides_prove_the_token_and_speak() -> None:
    server, client = greeted()
    assert list(server.feed(client.pack({"kind": "x"}, b"bytes"))) == [({"kind": "x"}, b"bytes")]
    assert list(client.feed(server.pack({"kind": "y"}))) == [({"kind": "y"}, b"")]


def test_who_has_another_token_is_refused_and_learns_nothing() -> None:
    with pytest.raises(Refused, match="another run token"):
        greeted(client_token="some other token")


def test_a_server_without_the_token_is_refused_by_its_clients() -> None:
    server, client = ServerGreeting("some other token"), ClientGreeting(TOKEN, 1)
    client.feed(server.outgoing)
    with pytest.raises(Refused, match="node 0 with another run token"):
        client.feed(bytes(32))


def test_a_frame_cannot_be_repeated_swapped_or_sent_back() -> None:
    server, client = greeted()
    first, second = client.pack({"n": 1}), client.pack({"n": 2})
    with pytest.raises(Refused):
        list(server.feed(second + first))
    server, client = greeted()
    frame = client.pack({"n": 1})
    with pytest.raises(Refused):
        list(server.feed(frame + frame))
    with pytest.raises(Refused):
        list(client.feed(client.pack({"n": 1})))


@given(st.binary(min_size=1, max_size=300))
def test_no_bytes_get_past_the_greeting(data: bytes) -> None:
    server = ServerGreeting(TOKEN)
    with contextlib.suppress(Refused):
        assert server.feed(data) is None


@given(st.data())
@settings(max_examples=60)
def test_a_changed_byte_of_a_frame_is_refused_or_waited_for_but_never_read(data: st.DataObject) -> None:
    server, client = greeted()
    frame = bytearray(client.pack({"kind": "x", "body": "y" * 30}, b"blob"))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(Refused):
        assert list(server.feed(bytes(frame))) == []


def test_a_frame_that_says_it_is_huge_is_refused_before_it_is_read() -> None:
    server, _ = greeted()
    with pytest.raises(Refused, match="too large"):
        list(server.feed(SIZES.pack(MOST_NOTE + 1, 0)))


# -- hub and link, over real sockets ----------------------------------------------------------------


class Nodes:
    """Node 0's hub, and links to it."""

    def __init__(self, root: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.arrivals = Arrivals()
        self.arrivals.open(root)
        self.hub = Hub(TOKEN, self.listener, 4, take=self.arrivals.take)
        self.links: list[Link] = []

    def link(self, node_rank: int = 1, *, agent: str = "a", token: str = TOKEN) -> Link:
        self.links.append(Link(token, self.address, node_rank, agent))
        return self.links[-1]

    def met(self, node_rank: int = 1, name: str = "hostb") -> Link:
        self.hub.admit(node_rank, "a")
        self.arrivals.admit(node_rank, name)
        link = self.link(node_rank)
        wait_until(lambda: self.hub.heard(node_rank, "agent"), "the link")
        return link

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 5)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.hub.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "run")
    (tmp_path / "run").mkdir()
    yield made
    made.close()


def heard(of: Callable[[], dict[str, Any] | None], **expected: Any) -> None:
    wait_until(lambda: expected.items() <= (of() or {}).items(), f"{expected}")


def test_the_newest_note_of_each_kind_arrives_on_both_sides(nodes: Nodes) -> None:
    link = nodes.met()
    for n in range(50):
        link.tell("state", {"n": n})
        nodes.hub.tell("order", {"n": n}, to=1)
    heard(lambda: nodes.hub.heard(1, "state"), n=49)
    heard(lambda: link.heard("order"), n=49)


def test_clocks_are_compared_by_what_came_back_quickest() -> None:
    clock = Clock()
    # Node 1's monotonic clock is 1000 ns behind ours, its wall clock 5000 ns ahead.
    for asked, took in ((10_000, 400), (20_000, 40), (30_000, 9_000)):
        theirs = Reading(mono_ns=asked + took - 20 - 1000, wall_ns=asked + took - 20 + 5000)
        clock.learn(
            Reading(mono_ns=asked, wall_ns=asked), theirs, Reading(mono_ns=asked + took, wall_ns=asked + took)
        )
    best = clock.offset()
    assert best is not None
    assert (best.mono_offset_ns, best.wall_offset_ns, best.rtt_ns) == (1000, -5000, 40)


def test_the_hub_learns_how_far_a_clock_is_off(nodes: Nodes) -> None:
    nodes.met()
    wait_until(lambda: nodes.hub.offset(1), "an answer to a ping")
    offset = nodes.hub.offset(1)
    assert offset is not None
    # One machine, so one clock: what is left is the time the question took.
    assert abs(offset.mono_offset_ns) <= offset.rtt_ns
    assert abs(offset.wall_offset_ns) <= offset.rtt_ns + 1_000_000


def test_random_bytes_and_a_port_scan_disturb_nobody(nodes: Nodes) -> None:
    link = nodes.met()
    draw = random.Random(7)
    strangers = []
    for n in range(200):
        stranger = nodes.connect()
        if n % 3:
            beginning = b"" if n % 2 else b"NSADIAG1"
            with contextlib.suppress(OSError):  # refused before it had said everything
                stranger.sendall(beginning + draw.randbytes(draw.randint(0, 5000)))
        if n % 5 == 0:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
        strangers.append(stranger)
    link.tell("state", {"n": 1})
    heard(lambda: nodes.hub.heard(1, "state"), n=1)
    assert nodes.hub.refused
    assert nodes.hub.heard(1, "agent")
    for stranger in strangers:
        stranger.close()


def test_a_link_with_another_token_is_refused_and_says_so(nodes: Nodes) -> None:
    nodes.hub.admit(1, "a")
    stranger = nodes.link(token="quite another token")
    wait_until(lambda: nodes.hub.refused["an agent with another run token"], "the refusal")
    assert nodes.hub.heard(1, "agent") is None
    assert not stranger.is_connected


def test_a_second_agent_with_a_taken_rank_is_refused(nodes: Nodes) -> None:
    first = nodes.met()
    nodes.link(1, agent="b")
    wait_until(lambda: nodes.hub.refused["a second agent for node 1"], "the refusal")
    first.tell("state", {"n": 5})
    heard(lambda: nodes.hub.heard(1, "state"), n=5)


def test_notes_of_kinds_that_nobody_sends_are_counted_and_not_kept(nodes: Nodes) -> None:
    link = nodes.met()
    for number in range(50):
        link.tell(f"kind {number}", {"body": "x" * 1000})
    link.tell("state", {"n": 1})
    heard(lambda: nodes.hub.heard(1, "state"), n=1)
    wait_until(lambda: sum(nodes.hub.refused.values()) == 50, "all of them")
    assert nodes.hub.refused == {"a note of a kind that nobody sends": 50}
    assert [nodes.hub.heard(1, f"kind {number}") for number in range(50)] == [None] * 50


def test_after_an_interruption_all_is_told_again(nodes: Nodes) -> None:
    link = nodes.met()
    link.tell("state", {"n": 1})
    nodes.hub.tell("order", {"n": 1})
    heard(lambda: link.heard("order"), n=1)
    connection = link._connection
    assert connection is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    link.tell("state", {"n": 2})
    nodes.hub.tell("order", {"n": 2})
    heard(lambda: nodes.hub.heard(1, "state"), n=2)
    heard(lambda: link.heard("order"), n=2)
    assert not nodes.hub.is_lost(1)


# -- evidence ---------------------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """What a node has on its own disk."""
    local = tmp_path / "local"
    (local / "ranks/00002/captures/01").mkdir(parents=True)
    (local / "nodes/hostb").mkdir(parents=True)
    (local / "ranks/00002/meta.json").write_text(json.dumps({"host": "hostb", "rank": 2}))
    (local / "ranks/00002/captures/01/empty.txt").write_bytes(b"")
    (local / "ranks/00002/blackbox.bin").write_bytes(random.Random(1).randbytes(3 * CHUNK_BYTES + 17))
    (local / "nodes/hostb/launcher.stderr.log").write_text("x" * 5_000_000)
    (local / "ranks/00002/link").symlink_to("/etc/passwd")
    return local


def test_a_nodes_files_arrive_whole_and_private(nodes: Nodes, evidence: Path, tmp_path: Path) -> None:
    link = nodes.met()
    shipped = Shipment(link, "hostb", soon()).send(evidence, ".")
    assert shipped.left == []
    sent = files(evidence)
    nodes.arrivals.close()
    assert files(tmp_path / "run") == sent
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "run").rglob("*"))
    assert nodes.hub.heard(1, "agent")


class Broken:
    """A channel that breaks after so many frames, and counts the bytes."""

    def __init__(self, link: Link, frames: int) -> None:
        self.link, self.left, self.bytes = link, frames, 0
        self.answer, self.forget_answers = link.answer, link.forget_answers

    def push(self, note: dict[str, Any], blob: bytes, deadline: Deadline) -> None:
        self.left -= 1
        if self.left < 0:
            connection = self.link._connection
            assert connection is not None
            connection.sock.shutdown(socket.SHUT_RDWR)
            raise Lost
        self.bytes += len(blob)
        self.link.push(note, blob, deadline)


def test_what_had_come_before_an_interruption_is_not_sent_again(
    nodes: Nodes, evidence: Path, tmp_path: Path
) -> None:
    link = nodes.met()
    big = 3 * CHUNK_BYTES + 17
    first = Broken(link, 7)
    with pytest.raises(Lost):
        Shipment(first, "hostb", soon()).send(evidence, ".")
    partly = CHUNK_BYTES
    wait_until(
        lambda: any(p.stat().st_size >= partly for p in (tmp_path / "run/.arriving").rglob("*")), "a part"
    )
    wait_until(lambda: link.is_connected and not link._connection.sock.fileno() < 0, "the connection")
    wait_until(lambda: nodes.hub._nodes[1].connection is not None, "the other end of it")
    second = Broken(link, 10_000)
    for _ in range(5):
        try:
            shipped = Shipment(second, "hostb", soon()).send(evidence, ".")
            break
        except Lost:
            wait_until(lambda: link.is_connected, "the connection")
    assert shipped.left == []
    nodes.arrivals.close()
    assert files(tmp_path / "run") == files(evidence)
    assert first.bytes >= partly
    log = 60_000  # five million equal letters, packed
    assert second.bytes <= big - partly + log


def offered(nodes: Nodes, link: Link, **changed: Any) -> dict[str, Any]:
    about = {"cell": ".", "path": "ranks/00002/x.json", "size": 3, "sha256": "0" * 64, "id": 1}
    link.push({"kind": "file", **about, **changed}, b"", soon())
    return link.answer(soon())


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "ranks/../../outside", "/etc/passwd", "ranks/00002/../../verdict.json", "verdict.json",
        "nodes/hosta/launcher.stderr.log", "ranks/2/x", "ranks/00002", "ranks/00002/.hidden", "nodes/hostb", "",
        "ranks/00002/a\0b", "ranks/00002/" + "d/" * 20 + "x", "cells/a/verdict.json", "ranks\\00002\\x",
    ],
)  # fmt: skip
def test_nothing_is_written_where_a_node_has_no_business(nodes: Nodes, tmp_path: Path, path: str) -> None:
    link = nodes.met()
    assert "no" in offered(nodes, link, path=path)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"size": -1}, {"size": 2**60}, {"size": "many"}, {"sha256": "../../x"}, {"sha256": None}, {"cell": "../run"},
        {"cell": "cells/none"}, {"path": None},
    ],
)  # fmt: skip
def test_a_malformed_offer_is_answered_and_harms_nothing(nodes: Nodes, changed: dict[str, Any]) -> None:
    link = nodes.met()
    assert "no" in offered(nodes, link, **changed)
    assert "offset" in offered(nodes, link)


def test_a_rank_of_another_node_is_not_overwritten(nodes: Nodes, tmp_path: Path) -> None:
    link = nodes.met()
    theirs = tmp_path / "run/ranks/00000"
    theirs.mkdir(parents=True)
    (theirs / "meta.json").write_text('{"host": "hosta"}')
    assert offered(nodes, link, path="ranks/00000/meta.json")["no"] == "rank 0 is on hosta as well"


def test_a_link_that_the_job_has_put_there_leads_nobody_out(nodes: Nodes, tmp_path: Path) -> None:
    link = nodes.met()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/ranks").mkdir()
    (tmp_path / "run/ranks/00002").symlink_to(tmp_path / "elsewhere")
    assert "link" in offered(nodes, link)["no"]


def test_a_part_that_unpacks_to_more_than_a_part_is_not_taken(nodes: Nodes, tmp_path: Path) -> None:
    link = nodes.met()
    bomb = zlib.compress(bytes(50 * CHUNK_BYTES), 9)
    assert offered(nodes, link, size=50 * CHUNK_BYTES)["offset"] == 0
    link.push({"kind": "chunk", "id": 1, "at": 0, "packed": True}, bomb, soon())
    assert "no" in link.answer(soon())
    assert sum(len(data) for data in files(tmp_path).values()) == 0


def test_a_file_whose_digest_is_not_what_was_said_does_not_appear(nodes: Nodes, tmp_path: Path) -> None:
    link = nodes.met()
    assert offered(nodes, link)["offset"] == 0
    link.push({"kind": "chunk", "id": 1, "at": 0, "packed": False}, b"abc", soon())
    assert link.answer(soon())["again"]
    assert files(tmp_path) == {}
