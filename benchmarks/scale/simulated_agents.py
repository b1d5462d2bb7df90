"""Agents of very many nodes in one process, for benchmarks/scale/many_nodes.py: real connections, real notes, replayed evidence.

Each has a directory of its own, as a node without a shared file system has, and ships from it as an agent does.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import queue
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nsadiag.agent.stillness.motion import Motion, Stance
from nsadiag.cluster.link import ANSWER_S, Lost
from nsadiag.cluster.protocol import clock
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.notes import Looked, Order, State, looked_document, order_of, to_document
from nsadiag.cluster.protocol.wire import ClientGreeting
from nsadiag.cluster.ship import Shipment
from nsadiag.cluster.watches import STILL_S, TELL_S
from nsadiag.deadlines.deadline import Deadline
from nsadiag.engines.static import KEPT_S
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.spans import ranks_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.recordings.crowds import DumpSet

TICK_S = 0.05
GONE_S = 30.0
AGAIN_S = 1.0
SHIPPING_THREADS = 16


class Agent:
    """One node. `stances` are of the recording's ranks."""

    def __init__(
        self, rank: int, ranks: range, run: RunDir, crowd: DumpSet, stances: dict[int, Stance]
    ) -> None:
        self.node_rank, self.ranks, self.run, self.crowd, self.stances = rank, ranks, run, crowd, stances
        self.name = f"node{rank:05d}"
        self.connection: Connection | None = None
        self.introduced = False
        self.told: dict[
            str, dict[str, Any]
        ] = {}  # of each kind the newest, to be told again after an interruption
        self.again_at = 0.0
        self.is_over = False
        self.outbox: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.order: Order | None = None
        self.state = State(cell=1, ranks=tuple(ranks), alive=len(ranks), world_size=crowd.world_size)
        self.told_at = 0.0
        self.looked = self.answering = self.bringing = 0
        self.look_at: float | None = None
        self.ending = False
        self.lock = threading.Lock()
        self.nudge: Callable[[], None] = lambda: None

    # -- what Shipment needs of a link ----------------------------------------------------------------

    def push(self, note: dict[str, Any], blob: bytes = b"", deadline: Deadline | None = None, /) -> None:
        if note["kind"] not in ("file", "chunk", "pong"):
            self.told[note["kind"]] = note
        self.outbox.put((note, blob))
        self.nudge()

    def answer(self, deadline: Deadline, /) -> dict[str, Any]:
        try:
            return self.answers.get(timeout=min(ANSWER_S, deadline.left()))
        except queue.Empty:
            raise Lost from None

    def forget_answers(self) -> None:
        while not self.answers.empty():
            self.answers.get_nowait()

    def ship(self, ranks: frozenset[int] | None) -> None:
        """None: everything, as of few ranks."""
        for rank in self.ranks if ranks is None else ranks:
            if not self.run.rank(rank).path.exists():
                self.crowd.write_rank(self.run, rank)
        Shipment(self, self.name, Deadline(KEPT_S)).send(self.run.path, ".", ranks)

    # -- notes ----------------------------------------------------------------------------------------

    def tell(self, **more: Any) -> None:
        with self.lock:
            self.state = dataclasses.replace(self.state, number=self.state.number + 1, **more)
            self.told_at = time.monotonic()
            self.push({**to_document(self.state), "kind": "state"})

    def hear(self, note: dict[str, Any]) -> None:
        kind = note.get("kind")
        if kind == "ping":
            self.push({"kind": "pong", "to": note.get("at"), **clock.document(clock.read())})
        elif kind == "file":
            self.answers.put(note)
        elif kind == "start":
            self.push({"kind": "ready", "shared": False, "directory": str(self.run.path)})
        elif kind == "order":
            self.order = order_of(note)
        elif kind == "bye":
            self.is_over = True

    def looked_document(self, first: int) -> dict[str, Any]:
        found = []
        for rank in self.ranks:
            stance = self.stances[self.crowd.original(rank)]
            motion = dataclasses.replace(stance.motion, rank=rank) if stance.motion else None
            found.append(dataclasses.replace(stance, rank=rank, motion=motion))
        return looked_document(Looked(cell=1, first=first, stances=found)) | {"kind": "looked"}


class Agents:
    """The loop in which all of them live."""

    def __init__(self, agents: list[Agent], about: dict[str, Any]) -> None:
        self.agents, self.port, self.token = agents, int(about["port"]), str(about["token"])
        self.apart_s, self.reduce_s = float(about["apart_s"]), float(about["reduce_s"])
        self.selector = selectors.DefaultSelector()
        self.pool = ThreadPoolExecutor(SHIPPING_THREADS)
        self.stalls_at = float("inf")
        self.woken, self.wake = socket.socketpair()
        self.woken.setblocking(False)
        self.wake.setblocking(False)
        self.selector.register(self.woken, selectors.EVENT_READ)
        for agent in agents:
            agent.nudge = self.nudge
        self.sent = self.received = 0

    def nudge(self) -> None:
        """The loop looks up: an answer may be on its way into a thread that ships."""
        with contextlib.suppress(BlockingIOError):  # as many as there is room for are enough
            self.wake.send(b".")

    def _connect(self, agent: Agent) -> None:
        """Again, after a while, where it was closed: as a Link does."""
        if time.monotonic() < agent.again_at:
            return
        agent.again_at = time.monotonic() + AGAIN_S
        sock = socket.create_connection(("127.0.0.1", self.port))
        agent.connection, agent.introduced = (
            Connection(sock, ClientGreeting(self.token, agent.node_rank)),
            False,
        )
        self.selector.register(sock, selectors.EVENT_READ, agent)

    def run(self) -> None:
        """Until node 0 has said that it is over."""
        while not all(agent.is_over for agent in self.agents):
            for key, _ in self.selector.select(TICK_S):
                if key.fileobj is self.woken:
                    self.woken.recv(1 << 16)
                else:
                    self._receive(key.data)
            now = time.monotonic()
            for agent in self.agents:
                self._serve(agent, now)
        self.pool.shutdown()

    def _serve(self, agent: Agent, now: float) -> None:
        connection = agent.connection
        if connection is None:
            if not agent.is_over:
                self._connect(agent)
            return
        if connection.frames is not None:
            if not agent.introduced:
                agent.introduced = True
                for note in ({"kind": "agent", "agent": f"agent {agent.node_rank}"}, *agent.told.values()):
                    connection.send(note)
            self._act(agent, now)
            while not agent.outbox.empty():
                connection.send(*agent.outbox.get())
        self._flush(agent)

    def _receive(self, agent: Agent) -> None:
        assert agent.connection is not None
        try:
            for note, _ in agent.connection.receive():
                self.received += len(json.dumps(note))
                agent.hear(note)
        except OSError:
            self._close(agent)

    def _flush(self, agent: Agent) -> None:
        assert agent.connection is not None
        before = agent.connection.waiting
        try:
            agent.connection.flush()
        except OSError:
            self._close(agent)
            return
        self.sent += before - agent.connection.waiting

    def _close(self, agent: Agent) -> None:
        if agent.connection is not None:
            self.selector.unregister(agent.connection.sock)
            agent.connection.close()
            agent.connection = None

    # -- as MemberWatch does --------------------------------------------------------------------------

    def _act(self, agent: Agent, now: float) -> None:
        order = agent.order
        if order is None:
            return
        moves = time.time() < self.stalls_at
        if now - agent.told_at > (TELL_S if moves else STILL_S) and not agent.ending:
            agent.tell(worked=agent.state.worked + (len(agent.ranks) if moves else 0), settled=True)
        if order.look > agent.looked:
            agent.looked, agent.look_at = order.look, now + self.apart_s
        if agent.look_at is not None and now >= agent.look_at:
            agent.look_at = None
            agent.push(agent.looked_document(agent.looked))
        if order.answer > agent.answering:
            agent.answering = order.answer
            self._hand_over(agent, order, lambda: agent.tell(answered=order.answer))
        if order.want > agent.bringing:
            agent.bringing = order.want
            self._bring(agent, order)
        if order.stop is not None and not agent.ending:
            agent.ending = True
            agent.tell(ending=True)
            done = {"over": True, "exit_code": 1, "ended": True, "kept": {"files": 0, "left": []}}
            self._hand_over(agent, order, lambda: agent.tell(**done))

    def _bring(self, agent: Agent, order: Order) -> None:
        wanted = frozenset(ranks_in(order.wanted)) & {*agent.ranks}
        number = order.want
        if not wanted:
            agent.tell(brought=number)
            return
        self._later(0.0, agent, wanted, lambda: agent.tell(brought=number))

    def _hand_over(self, agent: Agent, order: Order, then: Callable[[], None]) -> None:
        """The digest takes as long as it takes a real node."""
        self._later(self.reduce_s * order.many, agent, frozenset() if order.many else None, then)

    def _later(
        self, seconds: float, agent: Agent, ranks: frozenset[int] | None, then: Callable[[], None]
    ) -> None:

        def act() -> None:
            agent.ship(ranks)
            then()

        if seconds:
            threading.Timer(seconds, lambda: self.pool.submit(act)).start()
        else:
            self.pool.submit(act)


def stance_of(document: dict[str, Any]) -> Stance:
    return Stance(**{**document, "motion": Motion(**document["motion"])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("about", type=Path, help="a JSON document of benchmarks/scale/many_nodes.py")
    parser.add_argument("first", type=int)
    parser.add_argument("step", type=int)
    options = parser.parse_args()
    about = json.loads(options.about.read_text())
    crowd = DumpSet(RunDir(path=Path(about["recording"])), about["copied"], about["ranks"])
    stances = {stance.rank: stance for stance in map(stance_of, about["stances"])}
    each = about["ranks_per_node"]
    agents = [
        Agent(node, range((node - 1) * each, min(node * each, about["ranks"])), RunDir(path=Path(about["agents"]) / str(node)), crowd, stances)
        for node in range(1 + options.first, about["nodes"], options.step)
    ]  # fmt: skip
    together = Agents(agents, about)
    thread = threading.Thread(target=together.run, daemon=True)
    thread.start()
    # The parent says when the job is to stall, and reads what has travelled when the verdict is there.
    together.stalls_at = float(sys.stdin.readline() or "inf")
    while sys.stdin.readline():
        print(json.dumps({"sent": together.sent, "received": together.received}), flush=True)
    thread.join(GONE_S)  # node 0 closes all connections


if __name__ == "__main__":
    main()
