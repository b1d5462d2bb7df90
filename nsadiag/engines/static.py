"""The same command on every node: node 0 says what is to be run next, and all run their part of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.watch import WatchOptions
from nsadiag.cluster.join import Crew, Seat, Stopped
from nsadiag.cluster.link import Lost
from nsadiag.cluster.merge import Story, merge
from nsadiag.cluster.notes import Order, State, order_of, state_of, to_document
from nsadiag.cluster.place import free_port
from nsadiag.cluster.ship import Shipment, Shipped
from nsadiag.cluster.watches import ALONE_S, Crowd, LeadWatch, MemberWatch
from nsadiag.errors import EXIT_ENVIRONMENT, MachineError
from nsadiag.evidence.layout import NODE, RunDir, make_private_dir, write_private
from nsadiag.evidence.spans import ranks_in

READY_S = 60.0
KEPT_S = 120.0  # for evidence that travels, as long as it does
SIGN = ".meeting"  # in node 0's directory: who can read it shares the file system
SEEN_LATE_S = 2.0  # NFS may believe for a moment that there is no such file


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
        self._ready: dict[int, dict[str, Any]] = {}
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
                told = self.crew.hub.heard(rank, "ready")
                if told is not None and "failed" in told:
                    raise MachineError(f"{self._called(rank)}: {told['failed']}", str(told.get("hint", "")))
                if told is not None:
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
        """What the local engine makes instead of a Watch."""

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
            at = Path(str(ready["directory"])) / run.path.relative_to(self.root.path)
            stories.append(
                Story(
                    node_rank=rank,
                    name=self.crew.names[rank],
                    directory=str(at),
                    shared=bool(ready["shared"]),
                    ranks=watch.state(rank).ranks,
                    offset=self.crew.hub.offset(rank),
                    lost_s=watch.lost.get(rank),
                    why=self._why(watch, rank),
                    left=list(kept.get("left") or []),
                )
            )
        merge(run, self.name, stories)


class Member:
    """The side of every other node."""

    def __init__(
        self, seat: Seat, *, prepare: Callable[[Path], RunDir], out: Path | None, crowd: Crowd
    ) -> None:
        """`prepare` makes a directory of our own, where node 0's cannot be reached."""
        self._crowd = crowd
        self.seat, self.link = seat, seat.link
        self._prepare, self._out = prepare, out
        self.name = ""
        self.kind = ""
        self.shared = False
        self.root = RunDir(path=Path())
        self.watch: MemberWatch | None = None
        self._ended = 0

    def open(self) -> None:
        """Waits for node 0's word, and finds a place for the evidence. Raises NsadiagError."""
        start = self._wait_for("start")
        self.kind = str(start["kind"])
        self.name = str(start["names"][str(self.seat.node_rank)])
        os.environ[NODE] = self.name
        theirs = Path(str(start["directory"]))
        self.shared = self._is_shared(theirs, str(start["sign"]))
        try:
            ours = self._out or Path("artifacts") / theirs.name
            self.root = RunDir(path=theirs) if self.shared else self._prepare(ours)
        except Exception as error:
            self.link.tell("ready", {"failed": str(error), "hint": getattr(error, "hint", "")})
            self._say_it()
            raise
        about = {"shared": self.shared, "directory": str(self.root.path.resolve())}
        self.link.tell("ready", about)

    def _is_shared(self, theirs: Path, sign: str) -> bool:
        if self._out is not None and self._out.resolve() != theirs:
            return False
        deadline = time.monotonic() + (SEEN_LATE_S if theirs.parent.is_dir() else 0.0)
        while True:
            with contextlib.suppress(OSError):
                if (theirs / SIGN).read_text() == sign:
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def parts(self) -> Iterator[Part]:
        """Jobs that this node has a part of, until node 0 has no more. Raises Stopped where node 0 is lost or has failed."""
        done = 0
        while True:
            interrupts.check()
            if (bye := self.link.heard("bye")) is not None:
                if "message" in bye:
                    raise Stopped(str(bye["message"]), str(bye.get("hint", "")), int(bye.get("exit_code", 3)))
                self._ended = int(bye.get("exit_code", 0))
                return
            part = part_of(self.link.heard("part"))
            if part is not None and part.cell > done:
                done = part.cell
                if part.takes(self.seat.node_rank):
                    yield part
                    continue  # node 0 may have said goodbye meanwhile
            if self.link.silent_s() > ALONE_S:
                raise self.lost()
            time.sleep(0.05)

    def lost(self) -> Stopped:
        where = "" if self.shared else f"; what this node has seen is in {self.root.path}"
        return Stopped(f"node 0 is lost: its agent died, or the network between{where}", "", EXIT_ENVIRONMENT)

    @property
    def exit_code(self) -> int:
        """Node 0's."""
        return self._ended

    @property
    def summary(self) -> str:
        """Node 0's last words."""
        return str((self.link.heard("bye") or {}).get("summary", ""))

    def directory(self, part: Part) -> RunDir:
        run = RunDir(path=self.root.path if part.at == "." else self.root.path / part.at)
        make_private_dir(run.path)
        return run

    def make_watch(self, part: Part, run: RunDir) -> Callable[..., MemberWatch]:
        def make(job: Any, directory: RunDir, options: WatchOptions, **more: Any) -> MemberWatch:
            self.watch = MemberWatch(
                job, directory, options, cell=part.cell, link=self.link,
                hand_over=lambda order: self._hand_over(part, run, order), **more,
            )  # fmt: skip
            return self.watch

        return make

    def _hand_over(self, part: Part, run: RunDir, order: Order) -> Shipped:
        """Everything, or of very many ranks the digest, and those that are wanted."""
        if not order.many:
            return self._ship(run, part)
        if self.watch is not None:
            self.watch.reduce(self._crowd)
        return self._ship(run, part, frozenset(ranks_in(order.wanted)))

    def give_up(self, part: Part, error: Exception) -> None:
        """Tells node 0 that this node's agent cannot go on."""
        why = f"{type(error).__name__}: {error}"
        self.link.tell("state", to_document(State(cell=part.cell, number=-1, failed=why[:500])))
        self._say_it()

    def finish(self, part: Part, run: RunDir) -> None:
        """Brings the evidence to node 0, and says that this part is over."""
        if self.watch is not None:
            shipped = self._hand_over(part, run, self._order(part))
            if self.watch.unwritten:
                shipped.left.append(self.watch.unwritten)
            self.watch.tell(ended=True, kept=dataclasses.asdict(shipped))
            self._bring_the_last(part)
            self._say_it()

    def _order(self, part: Part) -> Order:
        order = order_of(self.link.heard("order"))
        return order if order is not None and order.cell == part.cell else Order(cell=part.cell)

    def _bring_the_last(self, part: Part) -> None:
        """By what the nodes' last digests show, node 0 may want other ranks."""
        deadline = time.monotonic() + KEPT_S
        while self.watch is not None and self._order(part).many and time.monotonic() < deadline:
            order = self._order(part)
            if order.want > self.watch.brought:
                self.watch.bring(order)
            if order.last or self.link.heard("bye") or self.link.silent_s() > ALONE_S:
                return
            time.sleep(0.05)

    def _ship(self, run: RunDir, part: Part, only: frozenset[int] | None = None) -> Shipped:
        """After Lost once more, as long as node 0 may come back."""
        if self.shared:
            return Shipped()
        while True:
            try:
                return Shipment(self.link, self.name).send(run.path, part.at, only)
            except Lost:
                if self.link.heard("bye") or self.link.silent_s() > ALONE_S:
                    return Shipped(left=["all of them: node 0 is gone"])
                time.sleep(0.2)

    def _say_it(self) -> None:
        deadline = time.monotonic() + 5.0
        while not self.link.all_told() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _wait_for(self, kind: str) -> dict[str, Any]:
        while (found := self.link.heard(kind)) is None:
            interrupts.check()
            if (bye := self.link.heard("bye")) is not None:
                raise Stopped(str(bye.get("message")), str(bye.get("hint", "")), int(bye.get("exit_code", 3)))
            if self.link.silent_s() > ALONE_S:
                raise self.lost()
            time.sleep(0.02)
        return found

    def close(self) -> None:
        self.link.close()
