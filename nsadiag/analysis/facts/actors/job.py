"""A job of Ray's, or of several launchers, as typed values: its processes and actors by number, with their names, and who called what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from nsadiag.analysis.records import CaptureEvidence, CellEvidence, RayEvidence
from nsadiag.evidence.documents.actors import RUNNING, ActorWaits, RayActor, RayJob, RayProcess, RayTask

DEAD, ALIVE = "DEAD", "ALIVE"
NO_TASK = 16 * "f"  # of an identity, before that of the actor
ID_CHARS = 48  # of an object's id: those of the task that makes it
CREATION = "ACTOR_CREATION_TASK"
CONTROLLER = "TrainController"  # of Ray Train: its run() ends once all of its workers' functions have
# Methods by which Ray asks its workers, over and over, whether they live.
WATCHES = ("poll_status", "__ray_ready__", "ping", "check_health")
# Ray's own actors, which no user wrote and no work of a job waits for: what they do is no progress.
OWN = ("JobSupervisor", "JobManager", "Looker", "DashboardAgent", "_AutoscalingCoordinatorActor", "PlacementGroupCleaner",
       "PreemptionWatcher", "TrainStateActor", "_StatsActor", "_StatsSummaryActor", "_UsageCollectionActor")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ActorJob:
    """The documents of one attach. Numbers are those of folders under ranks/; actors without a process have numbers after them."""

    cell: CellEvidence

    @cached_property
    def _evidence(self) -> RayEvidence:
        return self.cell.ray or RayEvidence(job=RayJob(id=""), waits={}, waited={})

    @property
    def document(self) -> str:
        """The file in the run directory that describes it."""
        return self._evidence.document

    @cached_property
    def has_roles(self) -> bool:
        """Whether it is one of several launchers, whose processes are no actors of Ray's."""
        return any(process.role for process in self.ray.processes)

    @property
    def ray(self) -> RayJob:
        return self._evidence.job

    @property
    def waits(self) -> Mapping[int, ActorWaits]:
        """At the second capture."""
        return self._evidence.waits

    @property
    def waited(self) -> Mapping[int, ActorWaits]:
        """At the first."""
        return self._evidence.waited

    @cached_property
    def processes(self) -> dict[int, RayProcess]:
        """All but those of Ray's own actors."""
        own = {actor.id for actor in self.ray.actors if actor.cls in OWN}
        return {process.number: process for process in self.ray.processes if process.actor not in own}

    @cached_property
    def actors(self) -> dict[str, RayActor]:
        return {actor.id: actor for actor in self.ray.actors if actor.cls not in OWN}

    @cached_property
    def tasks(self) -> dict[str, RayTask]:
        return {task.id: task for task in self.ray.tasks}

    @cached_property
    def number_of_actor(self) -> dict[str, int]:
        found = {process.actor: process.number for process in self.ray.processes if process.actor}
        following = max(self.processes, default=-1) + 1
        for actor in self.actors:
            if actor not in found:
                found[actor] = following
                following += 1
        return found

    @cached_property
    def number_of_worker(self) -> dict[str, int]:
        return {process.worker: process.number for process in self.ray.processes}

    @property
    def world_size(self) -> int:
        """Processes, and actors that have none."""
        return max([*self.processes, *self.number_of_actor.values()], default=0) + 1

    @cached_property
    def names(self) -> dict[int, str]:
        """Names of the actors: as the user named it, else its class and which of that class it is."""
        found, seen = {}, Counter[str]()
        many = Counter(actor.cls for actor in self.actors.values() if not actor.name)
        for actor in self._by_creation():
            number = self.number_of_actor[actor.id]
            if actor.name:
                found[number] = actor.name
                continue
            found[number] = f"{actor.cls} {seen[actor.cls]}" if many[actor.cls] > 1 else actor.cls
            seen[actor.cls] += 1
        for process in self.ray.processes:
            if process.role:
                alone = process.rank is None
                found[process.number] = process.role if alone else f"{process.role} rank {process.rank}"
            elif process.driver:
                found[process.number] = "the driver"
            elif process.rank is not None and process.actor in self.actors:
                found[process.number] = f"{self.actors[process.actor].cls} rank {process.rank}"
            elif process.number not in found:
                ran = [
                    t.method for t in self.ray.tasks if t.worker == process.worker and t.kind == "NORMAL_TASK"
                ]
                found[process.number] = f"task {ran[-1]}" if ran else f"worker {process.pid}"
        return found

    def hosts_of(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """Those of these processes and actors whose node is known, by its host; empty where all of the job is on one."""
        node_of = {self.number_of_actor[actor.id]: actor.node for actor in self.actors.values()}
        node_of |= {process.number: process.node for process in self.ray.processes}
        names = {node.id: node.host or node.address for node in self.ray.nodes}
        on = {number: names[node] for number, node in node_of.items() if names.get(node)}
        found: dict[str, list[int]] = {}
        for number in numbers:
            if number in on:
                found.setdefault(on[number], []).append(number)
        return found if len({*on.values()}) > 1 else {}

    def _by_creation(self) -> list[RayActor]:
        made = {task.actor: task.created_ms or 0.0 for task in self.ray.tasks if task.kind == CREATION}
        return sorted(self.actors.values(), key=lambda actor: made.get(actor.id, 0.0))

    def name(self, number: int) -> str:
        return self.names.get(number, f"process {number}")

    def running(self, number: int) -> list[RayTask]:
        """The calls that run in that process, the newest last."""
        process = self.processes.get(number)
        if process is None:
            return []
        actor = self.actors.get(process.actor)
        born = actor is not None and actor.state == ALIVE
        found = [
            task
            for task in self.ray.tasks
            if task.state == RUNNING and task.worker == process.worker
            if not (born and task.kind == CREATION)
        ]
        return sorted(found, key=lambda task: task.started_ms or 0.0)

    def caller(self, task: RayTask) -> int | None:
        """The number of the process that called it."""
        parent = self.tasks.get(task.parent)
        if parent is None:
            return self.number_of_actor.get(_of_coroutines(task))
        if parent.kind == "DRIVER_TASK":
            return next((p.number for p in self.ray.processes if p.driver), None)
        if parent.actor in self.number_of_actor:
            return self.number_of_actor[parent.actor]
        return self.number_of_worker.get(parent.worker)

    def pending_calls_of(self, task: RayTask) -> list[RayTask]:
        """The calls that it made and that are not over; where none names it, those that a coroutine of its actor made."""
        calls = [
            t for t in self.ray.tasks if not t.is_over and t.kind != CREATION and t.method not in WATCHES
        ]
        own = [t for t in calls if t.parent == task.id]
        return own or [t for t in calls if task.actor and _of_coroutines(t) == task.actor]

    def task_of(self, object_id: str) -> RayTask | None:
        """The call that makes an object; known by its actor alone where the control store has forgotten it."""
        identity = object_id[:ID_CHARS]
        known = self.tasks.get(identity)
        if known is None and identity[16:] in self.actors:
            return RayTask(
                id=identity, name=self.actors[identity[16:]].cls, kind="ACTOR_TASK", actor=identity[16:]
            )
        return known

    def captures(self, number: int) -> tuple[CaptureEvidence, ...]:
        """Its last two."""
        rank = next((rank for rank in self.cell.ranks if rank.rank == number), None)
        return tuple(c for c in rank.captures if c.stacks)[-2:] if rank else ()

    @cached_property
    def moved(self) -> tuple[RayTask, ...]:
        """Calls that were made, begun or over between the captures; not those by which Ray watches its workers, nor of its own actors."""
        found = (self.tasks[each] for each in self.ray.moved if each in self.tasks)
        return tuple(t for t in found if t.method not in WATCHES and t.name.partition(".")[0] not in OWN)

    @cached_property
    def moving(self) -> frozenset[str]:
        """Tasks that made a call, or got an answer, between the captures."""
        return frozenset(task.parent for task in self.moved if task.parent)

    def joining(self, number: int) -> tuple[int, str] | None:
        """The size and the address of the group that the process is about to create."""
        waits = self.waits.get(number)
        told = waits.joining if waits else None
        return (told.world_size, told.at) if told else None

    def joins_by_user(self, number: int) -> bool:
        """Whether that group is made by a function of the user's own, around torch's."""
        waits = self.waits.get(number)
        return bool(waits and waits.joining and waits.joining.by_user)

    def age_s(self, task: RayTask) -> float:
        """For how long it has run."""
        began = task.started_ms or task.created_ms
        return max((self.ray.taken_ms - began) / 1000, 0.0) if began else 0.0

    def longest_s(self, task: RayTask) -> float | None:
        """The longest call of that function that is over; None where none is."""
        took = [
            (t.ended_ms - t.started_ms) / 1000
            for t in self.ray.tasks
            if t.name == task.name and t.state == "FINISHED" and t.ended_ms and t.started_ms
        ]
        return max(took, default=None)


def _of_coroutines(task: RayTask) -> str:
    """The actor of which some coroutine made the call, where Ray does not say which; empty of any other call."""
    return task.parent[len(NO_TASK) :] if task.parent.startswith(NO_TASK) else ""
