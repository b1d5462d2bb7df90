"""The wait-for graph of a job of Ray's or of several launchers: over calls and objects, torch groups, coordinating actors,
resources, and what connects roles.

A node is a stand, or an actor in which no call runs: idle, dead, or not yet placed. A wait is for any of its targets, unless it
is known to need all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nsadiag.analysis.facts.actors.job import ALIVE, CONTROLLER, CREATION, DEAD, ActorJob
from nsadiag.analysis.facts.actors.peers import torch_peers
from nsadiag.analysis.facts.actors.stands import PEERS, Stand, Stands
from nsadiag.analysis.relations.actors.crossings import Crossings, Forming
from nsadiag.analysis.relations.wait_graph import Wait, WaitGraph
from nsadiag.evidence.blocking import OF_ITS_PROCESS
from nsadiag.evidence.documents.actors import RayActor, RayNode, RayTask

State = Literal["stands", "idle", "dead", "unplaced", "unknown", "absent"]
# Waits of those who may have asked for nothing: of a server that is idle for as long as nobody needs it.
PASSIVE = ("message", "thread", "task", "memory")
QUEUE = "_QueueActor"  # of ray.util.queue


@dataclass(frozen=True, kw_only=True)
class Node:
    """A waiter or what it waits for; `number` is that of its process or actor."""

    key: str
    number: int
    state: State
    stand: Stand | None = None
    come: tuple[int, ...] = ()  # of a member that is absent from a group: those who are not
    size: int = 0

    @property
    def is_locked(self) -> bool:
        """Whether it waits for another thread of its process."""
        return self.stand is not None and self.stand.doing in OF_ITS_PROCESS


@dataclass(frozen=True, kw_only=True)
class CallWait(Wait[str]):
    """A wait for a call, an actor, or what an actor holds."""

    kind: Literal[
        "call",
        "queued",
        "group",
        "coordinator",
        "resources",
        "answer",
        "message",
        "pipe",
        "thread",
        "task",
        "file",
        "key",
        "memory",
    ]
    task: RayTask | None = None


@dataclass(frozen=True, kw_only=True)
class CallGraph(WaitGraph[str, CallWait]):
    """Nodes by key, and the waits between them."""

    nodes: dict[str, Node]
    polling: frozenset[str] = frozenset()  # nodes that ask again and again for what another role is to give

    def nearest_waiter(self, keys: tuple[str, ...], but: tuple[int, ...]) -> Stand | None:
        """The nearest waiter for these nodes whose line is known: the one with the fewest waits between."""
        seen, near = set(keys), list(keys)
        while near:
            near = sorted({e.waiter for e in self.edges if e.waited_for in near} - seen)
            seen |= set(near)
            stands = [stand for key in near if (stand := self.nodes[key].stand) and stand.place]
            found = next((stand for stand in stands if stand.number not in but), None)
            if found:
                return found
        return None

    @cached_property
    def asked(self) -> frozenset[str]:
        """Nodes for which somebody waits, if only by way of others, who has asked for something."""
        first = {edge.waited_for for edge in self.edges if edge.kind not in PASSIVE}
        return frozenset(first.union(*(self.reached_from(key) for key in first)))


def graph_of(job: ActorJob, stands: Stands, crossings: Crossings | None) -> CallGraph:
    """The graph at the second capture."""
    return _Builder(job, stands, crossings).graph()


class _Builder:
    """Nodes and edges as they are found."""

    def __init__(self, job: ActorJob, stands: Stands, crossings: Crossings | None) -> None:
        self.job, self.stands, self.crossings = job, stands, crossings
        self.peers = torch_peers(job)
        self.nodes: dict[str, Node] = {}
        self.by_task: dict[str, str] = {}
        self.of_number: dict[int, list[str]] = {}
        self.every: set[str] = set()
        self.free: set[str] = set()
        self.never: set[str] = set()
        self.polling: set[str] = set()
        self.crossed = {s.key: crossings.of(s) for s in stands.rows} if crossings else {}
        self._add_stands()
        self._add_actors()

    def graph(self) -> CallGraph:
        edges = [edge for stand in self.stands.rows for edge in self._edges(stand)]
        edges += [edge for actor in self.job.actors.values() for edge in self._needs(actor)]
        # A coroutine that waits for no call of anybody's may wait for the world.
        waiting = {edge.waiter for edge in edges}
        self.free |= {s.key for s in self.stands.rows if s.doing == "suspended" and s.key not in waiting}
        single = {(e.waiter, e.waited_for, e.kind, e.what): e for e in edges}
        locked = {key for key, node in self.nodes.items() if node.is_locked}
        gone = {key for key, node in self.nodes.items() if node.state in ("dead", "absent")}
        # Beside the main thread another call of the process may yet run.
        alone = {key for key in locked if (stand := self.nodes[key].stand) and stand.main}
        return CallGraph(
            nodes=self.nodes,
            edges=tuple(single.values()),
            waiting=frozenset(self.nodes.keys() - self.free),
            any_of=frozenset(self.nodes.keys() - self.every),
            # Any call that runs could call it, or give back what it needs.
            called=frozenset(locked | {k for k, n in self.nodes.items() if n.state in ("idle", "unplaced")}),
            callers=frozenset(key for key, node in self.nodes.items() if node.stand is not None),
            never=frozenset(self.never | gone | alone),
            polling=frozenset(self.polling),
        )

    # -- nodes --------------------------------------------------------------------------------------

    def _add(self, node: Node) -> str:
        self.nodes[node.key] = node
        self.of_number.setdefault(node.number, []).append(node.key)
        return node.key

    def _add_stands(self) -> None:
        for stand in self.stands.rows:
            state: State = "idle" if stand.doing == "serves" else "stands"
            key = self._add(Node(key=stand.key, number=stand.number, state=state, stand=stand))
            if stand.task is not None:
                self.by_task[stand.task.id] = key
            if self.crossings and self.crossings.reaches_outside(stand):
                self.free.add(key)
            elif self.crossed.get(key):
                helped = bool(stand.coroutine) and stand.helpers
                if stand.works or stand.limit or helped or stand.doing == "sleep":
                    self.free.add(key)
                if not stand.works and (stand.limit or stand.doing == "sleep"):
                    self.polling.add(key)
            elif _could_act(stand) or (stand.task and stand.task.id in self.job.moving):
                self.free.add(key)

    def _add_actors(self) -> None:
        for actor in self.job.actors.values():
            number = self.job.number_of_actor[actor.id]
            if number in self.of_number:
                continue
            blind = number in self.stands.blind or (actor.state == ALIVE and number not in self.job.processes)
            state: State = (
                "dead" if actor.state == DEAD else "unknown" if blind else "idle" if actor.state == ALIVE
                else self._unplaced(actor.needs)
            )  # fmt: skip
            self._note(self._add(Node(key=f"{state}:{actor.id}", number=number, state=state)), actor.needs)

    def _unplaced(self, needs: dict[str, float] | None) -> State:
        """The lack of room that holds it back; where there is room, it is on its way."""
        rooms = [self._left(node) for node in self.job.ray.nodes if node.alive]
        return "unknown" if any(_fits(needs, room) for room in rooms) else "unplaced"

    def _left(self, node: RayNode) -> dict[str, float]:
        """Resources of a machine that running calls and living actors leave."""
        left = dict(node.resources or {})
        held = [a.needs for a in self.job.actors.values() if a.state == ALIVE and a.node == node.id]
        held += [rival.needs for rival in self.job.ray.rivals if rival.node == node.id]
        for process in self.job.ray.processes:
            if process.node == node.id:
                held += [t.needs for t in self.job.running(process.number) if t.kind == "NORMAL_TASK"]
        for needs in held:
            for name, amount in (needs or {}).items():
                left[name] = left.get(name, 0.0) - amount
        return left

    def _note(self, key: str, needs: dict[str, float] | None) -> None:
        """Mark what no machine could ever hold, and what another job may give room to."""
        state = self.nodes[key].state
        totals = [node.resources or {} for node in self.job.ray.nodes if node.alive]
        if state == "unplaced" and not any(_fits(needs, room) for room in totals):
            self.never.add(key)
        elif state == "unknown" or (state == "unplaced" and any(
            set(rival.needs or {}) & set(needs or {}) for rival in self.job.ray.rivals
        )):  # fmt: skip
            self.free.add(key)

    # -- edges --------------------------------------------------------------------------------------

    def _edges(self, stand: Stand) -> Iterator[CallWait]:
        if crossed := self.crossed.get(stand.key):
            for each in crossed:
                yield CallWait(waiter=stand.key, waited_for=each.to.key, kind=each.kind, what=each.what)
        elif stand.awaits is not None:
            yield from self._of_objects(stand)
        elif stand.doing == "suspended" and stand.task is not None:
            yield from self._of_coroutine(stand, stand.task)
        elif stand.doing in PEERS:
            yield from self._of_group(stand)

    def _of_objects(self, stand: Stand) -> Iterator[CallWait]:
        awaits = stand.awaits
        assert awaits is not None
        tasks = [task for each in awaits.objects if (task := self.job.task_of(each))]
        pending = [task for task in tasks if not task.is_over]
        done = len(awaits.objects) - len(pending)
        if not awaits.objects and stand.task is not None:
            # It may wait for any of the calls that it made, and not for each.
            pending = self.job.pending_calls_of(stand.task)
        elif awaits.call == "get" or (awaits.least or 1) - done >= len(pending):
            self.every.add(stand.key)
        for task in {task.id: task for task in pending}.values():
            yield from self._to_task(stand.key, task)

    def _to_task(self, waiter: str, task: RayTask) -> Iterator[CallWait]:
        """From whoever waits for a call to who runs it, or to whoever holds up that it is run."""
        what = f"{task.method}()"
        if task.id in self.by_task:
            yield CallWait(waiter=waiter, waited_for=self.by_task[task.id], kind="call", what=what, task=task)
            return
        if task.actor in self.job.number_of_actor:
            before = self.of_number[self.job.number_of_actor[task.actor]]
            state = self.nodes[before[0]].state
            if state == "idle":
                before = [self._begins(task)]
            if len(before) > 1:
                self.every.discard(waiter)  # any of them may make room for it
            kind: Literal["queued", "call"] = "queued" if state == "stands" else "call"
            for key in before:
                yield CallWait(waiter=waiter, waited_for=key, kind=kind, what=what, task=task)
            return
        waiting = task.state == "PENDING_NODE_ASSIGNMENT"
        key = f"call:{task.id}"
        if key not in self.nodes:
            state = self._unplaced(task.needs) if waiting else "unknown"
            self.nodes[key] = Node(key=key, number=-1, state=state)
            self._note(key, task.needs)
        yield CallWait(waiter=waiter, waited_for=key, kind="resources", what=what, task=task)

    def _begins(self, task: RayTask) -> str:
        """A call that its actor, which is idle, has not begun: it may be on its way, or wait for its arguments."""
        key = f"call:{task.id}"
        self.nodes[key] = Node(key=key, number=self.job.number_of_actor[task.actor], state="unknown")
        self.free.add(key)
        return key

    def _of_coroutine(self, stand: Stand, task: RayTask) -> Iterator[CallWait]:
        """A coroutine waits for calls that it made; one that made none waits for somebody else's call of its actor."""
        if self._class_of(stand.number) == CONTROLLER:
            yield from self._of_controller(stand, task)
            return
        calls = self.job.pending_calls_of(task)
        for call in calls:
            yield from self._to_task(stand.key, call)
        if calls:
            return  # it may wait for any of them, and not for each
        for number in self._callers(stand, task):
            for key in self.of_number.get(number, []):
                if key != stand.key:
                    yield CallWait(
                        waiter=stand.key,
                        waited_for=key,
                        kind="coordinator",
                        what=f"{task.method}()",
                        task=task,
                    )

    def _of_controller(self, stand: Stand, task: RayTask) -> Iterator[CallWait]:
        """To each worker whose function has not returned."""
        self.every.add(stand.key)
        me = self.job.processes[stand.number].worker
        for actor in self.job.actors.values():
            for key in self.of_number[self.job.number_of_actor[actor.id]] if actor.owner == me else ():
                if self.nodes[key].state == "stands":
                    yield CallWait(
                        waiter=stand.key, waited_for=key, kind="call", what="its function", task=task
                    )

    def _callers(self, stand: Stand, task: RayTask) -> list[int]:
        """Processes that could end the wait of a coroutine: those that have called its actor, but who waits for it."""
        waiting = self.job.caller(task)
        calls = [
            t for t in self.job.ray.tasks if t.actor == task.actor and t.kind != CREATION and t.id != task.id
        ]
        over = [t for t in calls if t.is_over]
        last: dict[int, str] = {}
        for each in sorted(over, key=lambda t: t.ended_ms or 0.0):
            number = self.job.caller(each)
            if number is not None:
                last[number] = each.method
        others = {number: method for number, method in last.items() if number not in (waiting, stand.number)}
        # Who was the last to get through the same call holds what this one waits for; else, who calls the other methods.
        holders = [number for number, method in others.items() if method == task.method]
        givers = [number for number, method in others.items() if method != task.method]
        found = holders or givers or sorted(others)
        if not found and self._class_of(stand.number) == QUEUE:
            # It waits for nothing but a call; whoever died at once may never have reported one.
            found = [number for number in self.job.names if number not in (waiting, stand.number)]
        return found

    def _of_group(self, stand: Stand) -> Iterator[CallWait]:
        """To members that stand in no collective; where all do, to those that stand in another one."""
        if self.crossings and (forming := self.crossings.forming(stand)):
            yield from self._of_forming(stand, forming)
            return
        peers = sorted(self._invited(stand) or list(self.peers.get(stand.number, set())))
        if self.crossings:
            peers = self.crossings.peers(stand, peers)
        absent = [n for n in peers if not any(s.doing in PEERS for s in self.stands.of(n))]
        others = [
            n for n in peers if n not in absent
            if not any(s.inner == stand.inner for s in self.stands.of(n) if s.doing in PEERS)
        ]  # fmt: skip
        for number in absent or others:
            for key in self._of_absent(number):
                yield CallWait(waiter=stand.key, waited_for=key, kind="group", what=stand.inner)

    def _of_forming(self, stand: Stand, forming: Forming) -> Iterator[CallWait]:
        """To whoever may be its other members; where that is nobody here, to somebody who may be elsewhere."""
        numbers = dict.fromkeys(each.number for each in forming.lacking)
        keys = [key for number in numbers for key in self._of_absent(number)]
        if not keys:
            keys = [f"absent:{','.join(map(str, forming.come))}"]
            self.nodes[keys[0]] = Node(
                key=keys[0], number=-1, state="absent", come=forming.come, size=forming.size
            )
            self.free.add(keys[0])
        for key in keys:
            yield CallWait(waiter=stand.key, waited_for=key, kind="group", what=stand.inner)

    def _of_absent(self, number: int) -> list[str]:
        """Its nodes; only those that serve where the rest wait for what these are to be asked for."""
        keys = self.of_number.get(number, [])
        idle = [key for key in keys if self.nodes[key].state == "idle"]
        rest = (self.nodes[key].stand for key in keys if key not in idle)
        return (
            idle if idle and all(stand is None or stand.doing in OF_ITS_PROCESS for stand in rest) else keys
        )

    def _invited(self, stand: Stand) -> list[int]:
        """Candidates for the ranks that a group under creation lacks: actors like those that have come, as many as ranks have not."""
        mine = self.job.joining(stand.number)
        if stand.doing != "rendezvous" or mine is None:
            return []
        come = {n for n in self.job.processes if self.job.joining(n) == mine}
        classes = {self._class_of(n) for n in come}
        others = {n for n in self.job.names if self._class_of(n) in classes} - come
        return sorted(others) if len(come) < mine[0] and len(others) == mine[0] - len(come) else []

    def _class_of(self, number: int) -> str:
        return next((a.cls for a in self.job.actors.values() if self.job.number_of_actor[a.id] == number), "")

    def _needs(self, actor: RayActor) -> Iterator[CallWait]:
        """From an actor that was never placed to who holds what it needs."""
        number = self.job.number_of_actor[actor.id]
        for key in self.of_number.get(number, []):
            if self.nodes[key].state == "unplaced":
                for holder in self.job.actors.values():
                    if holder.state == ALIVE and any(
                        (holder.needs or {}).get(name, 0) for name in actor.needs or {}
                    ):
                        for target in self.of_number[self.job.number_of_actor[holder.id]]:
                            yield CallWait(
                                waiter=key, waited_for=target, kind="resources", what=_amount(actor.needs)
                            )


def _could_act(stand: Stand) -> bool:
    """Whether the stand may go on by itself, whatever the others do."""
    if stand.doing == "serves":
        return stand.works
    if stand.works or stand.limit or (stand.helpers and stand.doing in OF_ITS_PROCESS):
        return True
    return stand.doing in ("runs", "sleep", "socket", "pipe", "io", "process", "signal", "loader", "backward")


def _fits(needs: dict[str, float] | None, room: dict[str, float]) -> bool:
    return all(room.get(name, 0.0) >= amount for name, amount in (needs or {}).items())


def _amount(needs: dict[str, float] | None) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in sorted((needs or {}).items())) or "nothing"
