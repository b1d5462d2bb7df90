"""An agent that knows the run token and means harm: it lies about its own node, and no further; node 0 has its verdict."""

from __future__ import annotations

import contextlib
import json
import platform
import random
import resource
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.cluster.meeting import TOKEN, files
from support.jobs import GIVE_UP_S, Jobs, wait_until

from nsadiag.cluster.arrivals import CHUNK_BYTES, Arrivals
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.meeting import ask
from nsadiag.cluster.merge import Story, merge
from nsadiag.cluster.place import Place, free_port
from nsadiag.cluster.protocol import clock
from nsadiag.cluster.protocol.clock import Offset
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.hello import WORD, hello_of, host_word
from nsadiag.cluster.protocol.notes import looked_of, ready_of, state_of
from nsadiag.cluster.protocol.wire import SIZES, ClientGreeting
from nsadiag.commands import output
from nsadiag.commands.nodes import hello_for
from nsadiag.commands.run_on_nodes import TASK
from nsadiag.deadlines.deadline import Deadline
from nsadiag.evidence.layout import RunDir

NAME = "hostb"
STRANGE: list[Any] = [
    None, True, -1, 2**70, 10**400, 1e308, "", "x" * 10_000, "\x1b]0;owned\x07\u202e", "../../x", "\0", [], [[[]]], {}, {"a": {}},
    [None], ["x", 1], {"1": None}, float("inf"), float("nan"), [2**40] * 50, "0-999999999",
]  # fmt: skip


class Hostile:
    """One connection of a token holder, over a real socket."""

    def __init__(self, address: tuple[str, int], node_rank: int = 1) -> None:
        sock = socket.create_connection(address, 10)
        self.connection = Connection(sock, ClientGreeting(TOKEN, node_rank))
        deadline = Deadline(GIVE_UP_S)
        while self.connection.frames is None:
            deadline.left()
            self.connection.flush()
            self.connection.receive()
            time.sleep(0.005)

    def say(self, kind: str, blob: bytes = b"", **note: Any) -> None:
        self.connection.send({**note, "kind": kind}, blob)
        while self.connection.waiting:
            self.connection.flush()

    def hear(self, kind: str) -> dict[str, Any]:
        deadline = Deadline(GIVE_UP_S)
        while True:
            deadline.left()
            for note, _ in self.connection.receive():
                if note["kind"] == "ping":
                    self.say("pong", to=note["at"], **clock.document(clock.read()))
                if note["kind"] == kind:
                    return note
            time.sleep(0.005)

    def close(self) -> None:
        self.connection.close()


class Node0:
    """The hub of node 0, and what it takes."""

    def __init__(self, root: Path, name: str = NAME) -> None:
        root.mkdir()
        self.root, self.arrivals = root, Arrivals()
        self.arrivals.open(root)
        self.arrivals.admit(1, name)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.hub = Hub(TOKEN, listener, 2, take=self.arrivals.take)
        self.hub.admit(1, "a")

    def member(self) -> Hostile:
        member = Hostile(self.address)
        member.say("agent", agent="a")
        return member


@pytest.fixture
def node_0(tmp_path: Path) -> Iterator[Node0]:
    made = Node0(tmp_path / "run")
    yield made
    made.hub.close()


def is_served(node_0: Node0) -> None:
    """A node in good order is heard after all that."""
    member = node_0.member()
    member.say("state", cell=1, number=4711)
    wait_until(lambda: (node_0.hub.heard(1, "state") or {}).get("number") == 4711, "the state")
    member.close()


# -- paths ------------------------------------------------------------------------------------------

PATHS = [
    "../x", "nodes/../../x", "/etc/x", "nodes/hostb/../../x", "nodes/hostb/..", "nodes//hostb/x", "./nodes/hostb/x",
    "nodes/hosta/x", "ranks/00001/../../../x", "ranks/0000\uff11/x", "ranks/00001/\u202ex", "ranks/00001/x\n", "cells/../x",
    "nodes/hostb/" + "d" * 300, "nodes/hostb/" + "d/" * 50 + "x", ".arriving/hostb/x", "verdict.json", "run.json", "sources/00-x.py",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_a_token_holder_leads_out_of_its_own_folders(
    node_0: Node0, tmp_path: Path, path: str
) -> None:
    member = node_0.member()
    data = b"owned"
    for cell in (".", "..", "cells/..", "cells/../..", "/", "nodes/hostb", ""):
        member.say("file", id=1, cell=cell, path=path, size=5, sha256=sha256(data).hexdigest())
        if "no" not in member.hear("file"):
            member.say("chunk", data, id=1, at=0, packed=False)
            member.hear("file")
    within = [
        name for name in files(tmp_path) if not name.startswith(("run/nodes/hostb/", "run/ranks/00001/"))
    ]
    assert within == []
    is_served(node_0)


@pytest.mark.parametrize(
    "name", ["../../out", "/tmp/out", "..", ".", "", "a/b", "a\0b", "\x1b[2J", "x" * 5000, "a b"]
)
@pytest.mark.parametrize("field", ["host", "agent", "task", "versions"])
def test_no_hello_names_a_folder_elsewhere_or_controls_a_terminal(name: str, field: str) -> None:
    fine = {
        "node_rank": 1, "nnodes": 2, "host": "hostb", "agent": "a", "task": "t", "versions": {"torch": "2"}, "gpus": 0, "cores": 1,
    }  # fmt: skip
    assert hello_of(fine) is not None
    assert hello_of({**fine, field: {"torch": name} if field == "versions" else name}) is None


def test_this_machines_own_name_is_one_that_a_hello_may_have() -> None:
    for name in (platform.node(), "", "ü.example", "a b", "-x", "..", "A_1.b-c", *output.versions().values()):
        assert WORD.fullmatch(host_word(str(name))), name


def test_what_lies_where_node_0_writes_is_a_gap_and_not_its_end(tmp_path: Path) -> None:
    """A file for each document of node 0's, below a folder of its name."""
    run = RunDir(path=tmp_path)
    for name in ("clock.json", "watch.json", "ends.json", "sources"):
        folder = run.node(NAME) / name
        folder.mkdir(parents=True)
        (folder / "x").write_text("{}")
    offset = Offset(mono_offset_ns=10**300, wall_offset_ns=0, rtt_ns=1)
    merge(run, "hosta", [Story(node_rank=1, name=NAME, directory="\x1b", shared=False, offset=offset)])
    assert json.loads(run.watch.read_text())["nodes"][1]["name"] == NAME


@pytest.mark.parametrize("file", ["a\0b.py", "x" * 5000 + ".py", "..", "/", "", "a\nb.py", "\x1b.py", "ü.py"])
def test_no_name_of_a_source_ends_node_0(tmp_path: Path, file: str) -> None:
    run = RunDir(path=tmp_path)
    folder = run.node(NAME) / "sources"
    folder.mkdir(parents=True)
    (folder / "index.json").write_text(json.dumps({file: "00-x.py", "y.py": file}))
    (folder / "00-x.py").write_text("pass")
    merge(run, "hosta", [Story(node_rank=1, name=NAME, directory="/x", shared=False)])
    written = [path.name for path in run.sources.glob("0*")]
    assert len(written) == 1 and written[0].isprintable(), written
    assert set(files(tmp_path)) == {
        "watch.json", "ends.json", f"nodes/{NAME}/sources/index.json", f"nodes/{NAME}/sources/00-x.py", "sources/index.json",
        f"sources/{written[0]}",
    }  # fmt: skip


# -- bombs ------------------------------------------------------------------------------------------


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_bomb_costs_no_more_than_a_part_of_a_file(node_0: Node0) -> None:
    member = node_0.member()
    bomb = zlib.compress(bytes(200 * 2**20), 9)
    before = peak_mib()
    for number in range(50):
        member.say("file", id=number, cell=".", path="ranks/00001/x", size=200 * 2**20, sha256="0" * 64)
        assert member.hear("file").get("offset") == 0
        member.say("chunk", bomb, id=number, at=0, packed=True)
        assert "no" in member.hear("file")
    assert peak_mib() - before < 100
    assert sum(len(data) for data in files(node_0.root).values()) <= CHUNK_BYTES
    is_served(node_0)


@pytest.mark.parametrize(
    "text", ["[" * 500_000, '{"a":' * 100_000, "9" * 1_000_000, '"\\ud800' * 100_000, "1e999", "NaN"]
)
def test_a_note_that_costs_more_than_it_weighs_is_refused(node_0: Node0, text: str) -> None:
    member = node_0.member()
    frames = member.connection.frames
    assert frames is not None
    body = f'{{"kind": "file", "id": 1, "cell": ".", "path": "x", "sha256": "", "size": {text}}}'.encode()
    frame = SIZES.pack(len(body), 0) + body
    member.connection.sock.setblocking(True)
    with contextlib.suppress(OSError):
        member.connection.sock.sendall(frame + frames._mac(0, frame))
    member.close()
    is_served(node_0)


# -- answers that nobody reads ----------------------------------------------------------------------


def test_answers_that_a_member_does_not_read_cost_a_bounded_room_and_then_its_connection(
    node_0: Node0,
) -> None:
    member = node_0.member()
    member.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    before = peak_mib()
    frames = member.connection.frames
    assert frames is not None
    sock = member.connection.sock
    sock.setblocking(True)
    # The number comes back with the answer, which makes it as long as the question.
    with pytest.raises(OSError):  # node 0 has closed it
        for _ in range(2000):
            sock.sendall(frames.pack({"kind": "file", "id": "x" * 500_000}))
    wait_until(lambda: node_0.hub.refused["an agent that does not read"], "the refusal")
    assert peak_mib() - before < 100
    is_served(node_0)


# -- strange notes ----------------------------------------------------------------------------------


def test_of_a_strange_note_only_what_has_its_type_is_believed() -> None:
    state = {"cell": 1, "number": 2, "ranks": [0, 1], "world_size": 2, "kept": {"left": ["a"]}, "failed": "x"}
    for strange in STRANGE:
        for key in (
            "number",
            "ranks",
            "alive",
            "world_size",
            "worked",
            "dead",
            "stirred_ago_s",
            "exit_code",
            "kept",
            "failed",
            "over",
        ):
            found = state_of({**state, key: strange})
            assert found is not None
            assert found.world_size <= 1_000_000 and len(found.ranks) <= 2
            assert all(type(rank) is int for rank in (*found.ranks, *found.dead))
            assert found.failed.isprintable()
            assert (found.kept or {}).get("left", []) in ([], ["a"], ["x"]), (key, strange)
        ready = ready_of({"shared": strange, "directory": strange, "failed": strange, "hint": strange})
        assert ready.failed.isprintable() and ready.hint.isprintable() and type(ready.shared) is bool
        for key in ("stances", "worked", "first"):
            told = looked_of({"cell": 1, "first": 2, "stances": [], "worked": {}, key: strange})
            assert told is None or all(did.isprintable() for _, did in told.worked.values())


def test_strange_notes_of_every_kind_end_nobody(node_0: Node0) -> None:
    member = node_0.member()
    draw = random.Random(5)
    for _ in range(500):
        kind = draw.choice(["agent", "state", "looked", "ready", "pong", "file", "chunk", "bye", "hello"])
        keys = [
            "cell",
            "number",
            "agent",
            "to",
            "mono_ns",
            "wall_ns",
            "id",
            "at",
            "path",
            "size",
            "sha256",
            "packed",
            "ranks",
        ]
        member.say(kind, **{key: draw.choice(STRANGE) for key in keys}, **{"x": draw.choice(STRANGE)})
    wait_until(lambda: node_0.hub.refused["a note of a kind that nobody sends"], "the last of them")
    is_served(node_0)
    assert node_0.hub._thread.is_alive()


JOB = """
import torch
for step in range(5):
    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
print("ran", flush=True)
"""


def test_a_run_has_its_verdict_though_the_other_node_says_nothing_that_is_so(
    jobs: Jobs, tmp_path: Path
) -> None:
    at = free_port(socket.AF_INET, "127.0.0.1")
    (tmp_path / "job.py").write_text(JOB)
    job = ["env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", sys.executable, tmp_path / "job.py"]
    where = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(at)]
    started = jobs.start(
        "run",
        "--passthrough",
        "--out",
        tmp_path / "run",
        *where,
        "--",
        *job,
        env={"NSADIAG_RUN_TOKEN": TOKEN},
    )
    place = Place(nnodes=2, node_rank=1, master_addr="127.0.0.1", master_port=at, token=TOKEN)
    hello = hello_for(place, TASK)
    answer = ask(("127.0.0.1", at), TOKEN, hello, Deadline(GIVE_UP_S), lambda why: None)
    member = Hostile(("127.0.0.1", int(answer["door"])))
    member.say("agent", agent=hello.agent)
    member.hear("start")
    member.say("ready", shared="\x1b[2J", directory=["x"])
    cell = member.hear("part")["cell"]
    draw = random.Random(11)
    number = 0
    with contextlib.suppress(OSError):
        while started.poll() is None:
            number += 1
            kinds = {
                key: draw.choice(STRANGE)
                for key in ("ranks", "dead", "worked", "world_size", "stirred_ago_s", "kept", "exit_code")
            }
            member.say("state", cell=cell, number=number, ended=True, over=number > 100, **kinds)
            member.say(
                "looked",
                cell=cell,
                first=draw.choice(STRANGE),
                stances=draw.choice(STRANGE),
                worked=draw.choice(STRANGE),
            )
            list(member.connection.receive())
            time.sleep(0.02)
    done = jobs.finish(started)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
    assert json.loads((tmp_path / "run/verdict.json").read_text())["outcome"]
