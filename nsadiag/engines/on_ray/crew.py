"""The actors of a job: one on each of its nodes, by a placement group that no two of them share a node in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nsadiag.engines.on_ray.agent import STOP_S, Agent
from nsadiag.engines.on_ray.cluster import Shape

PULSE_S = 1.0
# A node that answers nothing for so long is named; Ray may take much longer where a cable was pulled.
SILENT_S = 4.0
CLEAN_S = 2.0
THREADS = 8  # of an actor: a job, a pulse, a stop, and room

State = Literal["asked", "coming", "free", "busy", "broken"]


class Crew:
    """Asked for when it is made; `look` sees how far it is. It runs one job at a time, and is kept for the next."""

    def __init__(self, ray: Any, shape: Shape, *, module: str, cwd: str | None) -> None:
        self._ray, self.shape = ray, shape
        self._module, self._cwd = module, cwd
        self._group = ray.util.placement_group([shape.bundle()] * shape.nodes, strategy="STRICT_SPREAD")
        self.state: State = "asked"
        self.agents: list[Any] = []
        self.places: list[dict[str, Any]] = []
        self.codes: dict[int, int] = {}  # of the job, by node
        self.lost: dict[int, str] = {}  # nodes of it that are, and why
        self._waited: dict[Any, int] = {}  # what is waited for, to its node
        self._pulses: dict[Any, int] = {}
        self._heard: dict[int, float] = {}
        self._pulsed = 0.0
        self._felt = 0.0

    # -- how far it is ------------------------------------------------------------------------------

    def look(self) -> None:
        """Sees what has come since the last look, and waits for nothing."""
        if self.state == "asked" and self._is_there():
            self._start()
        elif self.state == "coming":
            self._meet()
        elif self.state in ("free", "busy"):
            self._feel_pulses()
            self._collect()

    def _is_there(self) -> bool:
        table = self._ray.util.placement_group_table(self._group)
        return bool(table.get("state") == "CREATED")

    def _start(self) -> None:
        table = self._ray.util.placement_group_table(self._group)
        by_id = {node["NodeID"]: node for node in self._ray.nodes()}
        nodes = [by_id.get(table["bundles_to_node_id"][index], {}) for index in range(self.shape.nodes)]
        for index, node in enumerate(nodes):
            strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
            made = self._ray.remote(Agent).options(
                num_cpus=self.shape.cpus, num_gpus=self.shape.gpus, scheduling_strategy=strategy, max_concurrency=THREADS,
            )  # fmt: skip
            agent = made.remote(self._module, self._cwd, node.get("NodeManagerAddress", ""))
            self.agents.append(agent)
            self.places.append(
                {"host": node.get("NodeManagerHostname", "?"), "address": node.get("NodeManagerAddress", "?")}
            )
            self._waited[agent.place.remote()] = index
        self.state = "coming"

    def _meet(self) -> None:
        for index, found in self._ready(self._waited):
            if isinstance(found, BaseException):
                self.lost[index] = _reason(found)
            else:
                self.places[index] |= found
        if self.lost:
            self.state = "broken"
        elif not self._waited:
            self._heard = dict.fromkeys(range(self.shape.nodes), time.monotonic())
            self.state = "free"

    def _ready(self, waited: dict[Any, int]) -> list[tuple[int, Any]]:
        """Results by node: a value, or the exception that the call raised."""
        if not waited:
            return []
        ready, _ = self._ray.wait(list(waited), num_returns=len(waited), timeout=0)
        found: list[tuple[int, Any]] = []
        for reference in ready:
            index = waited.pop(reference)
            try:
                found.append((index, self._ray.get(reference)))
            except Exception as error:
                found.append((index, error))
        return found

    def _feel_pulses(self) -> None:
        before, self._felt = self._felt, time.monotonic()
        if self._felt - before > 2 * PULSE_S:
            # Nobody asked meanwhile: that is no silence of theirs.
            self._heard = dict.fromkeys(self._heard, self._felt)
        for index, found in self._ready(self._pulses):
            if not isinstance(found, BaseException):
                self._heard[index] = time.monotonic()
            elif self.state == "free":
                # Between two jobs nobody else would notice.
                self.lost[index], self.state = _reason(found), "broken"
        if time.monotonic() - self._pulsed > PULSE_S:
            self._pulsed = time.monotonic()
            asked = set(self._pulses.values())
            self._pulses |= {
                agent.place.remote(): index for index, agent in enumerate(self.agents) if index not in asked
            }

    def _collect(self) -> None:
        for index, found in self._ready(self._waited):
            if isinstance(found, BaseException):
                self.lost[index] = _reason(found)
            else:
                self.codes[index] = found
        if self.state == "busy" and not self._waited:
            self.state = "broken" if self.lost else "free"

    # -- its job ------------------------------------------------------------------------------------

    def start(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """One job, as each node is to hear of it."""
        self.codes, self.state = {}, "busy"
        for index, (agent, job) in enumerate(zip(self.agents, jobs, strict=True)):
            self._waited[agent.run.remote(job)] = index

    def called(self, index: int) -> str:
        return f"{self.places[index]['host']} ({self.places[index]['address']})"

    def silent(self) -> dict[int, float]:
        """Nodes that have not answered, each with for how many seconds."""
        now = time.monotonic()
        return {index: now - at for index, at in self._heard.items() if now - at > SILENT_S}

    def trouble(self, ranks_per_node: int) -> str:
        """Nodes that are lost or do not answer, each with its ranks; empty where there are none."""
        said = dict.fromkeys(self.silent(), f"has not answered for {SILENT_S:g} s")
        said |= {index: f"is lost: {why}" for index, why in self.lost.items()}
        many = "s" if ranks_per_node > 1 else ""
        return "; ".join(
            f"node {index}, {self.called(index)}, with rank{many} {_spelled(index * ranks_per_node, ranks_per_node)}, {what}"
            for index, what in sorted(said.items())
        )

    # -- its end ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Has every agent end, which ends what it runs; `has_left` says when they have."""
        self._waited = {agent.stop.remote(): index for index, agent in enumerate(self.agents)}
        self._left_at = time.monotonic()

    def has_left(self) -> bool:
        """Whether all agents have ended, or had their time."""
        self._ready(self._waited)
        self._feel_pulses()
        if time.monotonic() - self._left_at > STOP_S + PULSE_S:
            return True
        # A node that is gone answers nothing; the others have a moment.
        return set(self._waited.values()) <= {*self.lost, *self.silent()}

    def remove(self) -> None:
        """Nothing of it is left in Ray, nor on disks."""
        if self.agents:
            self._ray.wait(
                [agent.clean.remote() for agent in self.agents], num_returns=len(self.agents), timeout=CLEAN_S
            )
        for agent in self.agents:
            self._ray.kill(agent)
        self._ray.util.remove_placement_group(self._group)


def _spelled(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _reason(error: BaseException) -> str:
    """The reason for which a node's actor no longer answers, in a few words."""
    kind = type(error).__name__
    if kind == "ActorUnavailableError":
        return "the connection to it broke"
    cause = str(getattr(error, "cause", None) or error).strip().splitlines() or [kind]
    return "its node or its actor died" if kind == "ActorDiedError" else cause[-1].strip()[:200]
