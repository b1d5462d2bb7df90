"""The same command on every node: what all but node 0 do, which is what node 0 says."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.join import Seat, Stopped
from nsadiag.cluster.link import Lost
from nsadiag.cluster.member_watch import MemberWatch
from nsadiag.cluster.protocol.notes import Order, State, order_of, to_document
from nsadiag.cluster.ship import Shipment, Shipped
from nsadiag.cluster.watches import ALONE_S, Crowd
from nsadiag.deadlines.deadline import Deadline
from nsadiag.engines.static import KEPT_S, SIGN, Part, part_of
from nsadiag.errors import EXIT_ENVIRONMENT
from nsadiag.evidence.layout import NODE, RunDir, make_private_dir
from nsadiag.evidence.spans import ranks_in

SEEN_LATE_S = 2.0  # NFS may believe for a moment that there is no such file


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
        deadline = Deadline(KEPT_S)
        while True:
            try:
                return Shipment(self.link, self.name, deadline).send(run.path, part.at, only)
            except Lost:
                if self.link.heard("bye") or self.link.silent_s() > ALONE_S:
                    return Shipped(left=["all of them: node 0 is gone"])
                time.sleep(0.2)

    def _say_it(self) -> None:
        deadline = time.monotonic() + 5.0
        while not self.link.all_sent() and time.monotonic() < deadline:
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
