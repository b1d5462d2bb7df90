"""The same command on every node: node 0 says what is to be run next, and all run their part of it."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.join import Crew
from nsadiag.cluster.merge import Story, merge
from nsadiag.cluster.place import free_port
from nsadiag.cluster.protocol.notes import Ready, ready_of, state_of
from nsadiag.cluster.watches import Crowd, LeadWatch
from nsadiag.errors import MachineError
from nsadiag.evidence.layout import NODE, RunDir, write_private

READY_S = 60.0
KEPT_S = 120.0  # for evidence that travels, as long as it does
SIGN = ".meeting"  # in node 0's directory: who can read it shares the file system


@dataclass(frozen=True, kw_only=True)
class Part:
    """A job, or a cell's job, as node 0 announces it."""

    cell: int  # counted from 1
    at: str  # its directory in the run's: "." or cells/ID
    name: str  # the cell's id, "" in a run
    counts: tuple[int, ...]  # ranks by node; empty where the user's own lines say so
    endpoint: str  # of the job's own rendezvous, on node 0
    id: str
    probes: str
    options: WatchOptions

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def takes(self, node_rank: int) -> bool:
        """Whether that node has ranks of it."""
        return not self.counts or (node_rank < len(self.counts) and self.counts[node_rank] > 0)

    def among(self, node_rank: int) -> dict[str, Any]:
        """For the launcher there (engines.local)."""
        nnodes = sum(count > 0 for count in self.counts)
        return {"id": self.id, "nnodes": nnodes, "node_rank": node_rank, "endpoint": self.endpoint}


def part_of(document: Mapping[str, Any] | None) -> Part | None:
    try:
        fields = {f.name: (document or {})[f.name] for f in dataclasses.fields(Part)}
        options = WatchOptions(**fields.pop("options"))
        return Part(**fields | {"counts": tuple(int(n) for n in fields["counts"]), "options": options})
    except (KeyError, TypeError, ValueError):
        return None


def spread(world_size: int, nnodes: int) -> tuple[int, ...]:
    """Ranks by node, as evenly as can be; a node may have none."""
    each, more = divmod(world_size, nnodes)
    return tuple(each + (node < more) for node in range(nnodes))


class Lead:
    """Node 0's side of a run on several nodes."""

    def __init__(self, crew: Crew, root: RunDir, crowd: Crowd) -> None:
        self.crew, self.root, self._crowd = crew, root, crowd
        self.name = crew.names[0]
        self._count = 0
        self._ready: dict[int, Ready] = {}
        self.gone: dict[int, str] = {}  # nodes that take part no more, and why
        self.watch: LeadWatch | None = None  # of the job that runs, or ran last
        crew.arrivals.open(root.path)
        for rank in crew.others:
            crew.arrivals.admit(rank, crew.names[rank])
        os.environ[NODE] = self.name

    def open(self, *, kind: str) -> None:
        """Tells all where the evidence goes, and waits until each is ready. Raises MachineError."""
        nonce = secrets.token_hex(16)
        write_private(self.root.path / SIGN, nonce)
        names = {str(rank): name for rank, name in self.crew.names.items()}
        about = {"kind": kind, "directory": str(self.root.path.resolve()), "sign": nonce, "names": names}
        self.crew.hub.tell("start", about)
        deadline = time.monotonic() + READY_S
        while waited := [rank for rank in self.crew.others if rank not in self._ready]:
            interrupts.check()
            for rank in waited:
                note = self.crew.hub.heard(rank, "ready")
                if note is None:
                    continue
                told = ready_of(note)
                if told.failed:
                    raise MachineError(f"{self._called(rank)}: {told.failed}", told.hint)
                self._ready[rank] = told
            if time.monotonic() > deadline or any(self.crew.hub.is_lost(rank) for rank in waited):
                raise MachineError(f"{self._called(waited[0])} was here, and is not heard any more")
            time.sleep(0.02)
        (self.root.path / SIGN).unlink(missing_ok=True)

    def _called(self, rank: int) -> str:
        return f"node {rank} ({self.crew.names[rank]})"

    def announce(
        self, *, at: str, name: str, counts: Sequence[int], probes: str, options: WatchOptions
    ) -> Part:
        """All start their part of it."""
        self._count += 1
        # As the user would have given it to torchrun: the address that we listen on may be a wildcard.
        endpoint = f"{self.crew.place.master_addr}:{free_port(self.crew.family, self.crew.address)}"
        part = Part(
            cell=self._count, at=at, name=name, counts=tuple(counts), endpoint=endpoint,
            id=secrets.token_hex(8), probes=probes, options=options,
        )  # fmt: skip
        self.crew.hub.tell("part", part.document())
        return part

    def members(self, part: Part) -> list[int]:
        return [rank for rank in self.crew.others if part.takes(rank) and rank not in self.gone]

    def make_watch(self, part: Part, run: RunDir) -> Callable[..., LeadWatch]:
        """Make the watch of this node, where the local engine makes a Watch."""

        def make(job: Any, directory: RunDir, options: WatchOptions, **more: Any) -> LeadWatch:
            self.watch = LeadWatch(
                job, directory, options, cell=part.cell, hub=self.crew.hub, members=self.members(part),
                names=self.crew.names, gather=lambda watch: self._merge(run, watch, ended=False), crowd=self._crowd, **more,
            )  # fmt: skip
            return self.watch

        return make

    def finish(self, run: RunDir) -> None:
        """The job is over everywhere: waits for the evidence, and puts it together."""
        watch = self.watch
        if watch is None:
            return  # it never came to a job
        self._wait_for_evidence(watch)
        watch.want(last=True)
        self._merge(run, watch, ended=True)
        for rank in watch.members:
            if rank in watch.lost:
                self.gone[rank] = f"{self._called(rank)} was lost: {self._why(watch, rank)}"

    def _why(self, watch: LeadWatch, rank: int) -> str:
        return watch.state(rank).failed or "its agent died, or the network to it"

    def _wait_for_evidence(self, watch: LeadWatch) -> None:
        deadline = time.monotonic() + KEPT_S
        while time.monotonic() < deadline:
            waiting = [
                rank
                for rank in watch.members
                if not self._kept(rank, watch.cell) and not self.crew.hub.is_lost(rank)
            ]
            if not waiting:
                return
            time.sleep(0.05)

    def _kept(self, rank: int, cell: int) -> Mapping[str, Any] | None:
        state = state_of(self.crew.hub.heard(rank, "state"))
        return state.kept if state is not None and state.cell == cell else None

    def _merge(self, run: RunDir, watch: LeadWatch, *, ended: bool) -> None:
        stories = []
        for rank in watch.members:
            ready, kept = self._ready[rank], self._kept(rank, watch.cell) or {}
            if ended and self.crew.hub.is_lost(rank):
                watch.note_lost(rank)
            at = Path(ready.directory) / run.path.relative_to(self.root.path)
            stories.append(
                Story(
                    node_rank=rank,
                    name=self.crew.names[rank],
                    directory=str(at),
                    shared=ready.shared,
                    ranks=watch.state(rank).ranks,
                    offset=self.crew.hub.offset(rank),
                    lost_s=watch.lost.get(rank),
                    why=self._why(watch, rank),
                    left=list(kept.get("left") or []),
                )
            )
        merge(run, self.name, stories)
