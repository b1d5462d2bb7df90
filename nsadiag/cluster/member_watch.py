"""The watch of every node but 0: says what it sees, does as node 0 says, and acts alone when that is lost."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.captures.capturing import capture_slow
from nsadiag.agent.job.launch import Job
from nsadiag.agent.stillness.motion import Motion, joined
from nsadiag.agent.watching.state import Look, Pair, WatchOptions
from nsadiag.agent.watching.watch import POLL_S
from nsadiag.cluster.link import Link
from nsadiag.cluster.protocol.notes import (
    Looked,
    Order,
    State,
    looked_document,
    order_of,
    to_document,
)
from nsadiag.cluster.watches import ALONE_S, STILL_S, TELL_S, Among
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.spans import ranks_in

# What node 0 found, where it ends a job that still runs.
SAYS = {
    "hang": "Node 0 found a hang.",
    "timeout": "Node 0's --timeout expired.",
    "interrupt": "Node 0 was interrupted.",
}


class MemberWatch(Among):
    """Every other node's: says what it sees, does as node 0 says, and acts alone when that is lost."""

    def __init__(
        self,
        job: Job,
        directory: RunDir,
        options: WatchOptions,
        *,
        cell: int,
        link: Link,
        hand_over: Callable[[Order], object],
        **more: Any,
    ) -> None:
        """`hand_over` brings what is on disk to where node 0 can read it."""
        super().__init__(job, directory, options, cell=cell, **more)
        self._link, self._hand_over = link, hand_over
        self._number = self._answered = self._looked_at = self.brought = 0
        self._told_at = 0.0
        self._told: State | None = None
        self._stirred_at: float | None = None
        self._told_stirred_at: float | None = None
        self._order = Order(cell=cell)
        self.is_alone = False
        self.unwritten: str | None = None  # what could not be written here, and why

    def _loop(self) -> None:
        heard: tuple[int, ...] = ()
        for order in self._rounds():
            if order.waiting != heard:
                # Once: a rank that moved meanwhile waits no more, whatever the last look said.
                heard, self._waiting = order.waiting, set(order.waiting)
            if order.stop is not None:
                self._stop_as(order.stop)
                return
            if order.look > self._looked_at:
                self._look_along(order.look)
            if order.answer > self._answered:
                self._order = order
                self._answer(order.answer)
            if order.want > self.brought:
                self.bring(order)
        self.is_alone = True
        super()._loop()

    def _rounds(self) -> Iterator[Order]:
        """Node 0's newest order again and again, until node 0 is lost."""
        while self._link.silent_s() < ALONE_S:
            interrupts.check()
            self._note_deaths(POLL_S)
            self._discover()
            self._feel_pulses()
            alive = self._alive()
            self._sampler.sample({r.directory: r.process.pid for r in alive if r.process and r.iterations})
            self._watch_activity(alive)
            self.tell()
            if self._link.heard("bye"):
                # It left in good order, but in the middle of a job: someone has interrupted it.
                yield Order(cell=self.cell, stop="interrupt")
                return
            order = order_of(self._link.heard("order"))
            yield order if order is not None and order.cell == self.cell else Order(cell=self.cell)

    def _end_everything(self) -> None:
        if self.stopped == "interrupt" and self._ending_since_ns is None:
            # Someone has interrupted this node, or we failed: the others must not take it for the job's own end.
            self._ending_since_ns = time.monotonic_ns()
            error = sys.exc_info()[1]
            why = {"interrupted": True} if isinstance(error, KeyboardInterrupt) else {"failed": repr(error)}
            self.tell(ending=True, **why)
        super()._end_everything()

    def write(self) -> None:
        """Write watch.json; an error, such as a full disk, is kept in `unwritten` for node 0."""
        try:
            super().write()
        except OSError as error:
            self.unwritten = f"{self.directory.watch.name}: {error.strerror}"

    def _stop_as(self, why: str) -> None:
        if why in SAYS:
            self.stopped = why  # type: ignore[assignment] # one of those
            if self._notices and not self.left_running:
                self._notices.stopping(SAYS[why])
        self._ending_since_ns = time.monotonic_ns()
        self.tell(ending=True)

    def _look_along(self, number: int) -> None:
        started = time.monotonic() - self._started
        self._looked_at, self.captures.count = number, number - 1
        pair = self._pair(self.options.looks_apart_s)
        now = time.monotonic()
        worked = {rank: (now - moment, did) for rank, (moment, did) in self._worked(self._may_spin()).items()}
        told = Looked(cell=self.cell, first=number, stances=pair.stances, worked=worked)
        self._link.tell("looked", looked_document(told))
        moved = [dataclasses.asdict(s.motion) for s in pair.stances if s.motion]
        judged = {"judgement": "unobserved", "reason": "judged by node 0, with what the others saw"}
        self.looks.append(Look(t_s=started, first=number, second=pair.second, motions=moved, **judged))  # type: ignore[arg-type]
        self.patience.looked("unobserved", now)
        self.captures.forget(self.looks, self.ranks.values())

    def _answer(self, capture: int) -> None:
        self._answered = capture
        if self.is_alone:
            super()._answer(capture)
            return
        self.write()
        self._hand_over(self._order)
        self.tell(answered=capture)
        if self.options.thorough:
            capture_slow([self.captures.target(r, capture) for r in self._alive()])

    def bring(self, order: Order) -> None:
        """Hand over the evidence of local ranks that the order names, and report it as brought."""
        self.brought = order.want
        if {*ranks_in(order.wanted)} & {*self.ranks}:
            self._hand_over(order)
        self.tell(brought=order.want)

    def _joined(self, pair: Pair) -> list[Motion]:
        world = set(self.ranks) | set(range(self._declared()))
        return joined(pair.stances, world, quiet_s=self.patience.quiet_s(time.monotonic()))

    def tell(self, **more: Any) -> None:
        """Report the state of this node; `more` is part of every report from now on."""
        now = time.monotonic()
        state = self._state(now, **more)
        changed = self._told is None or any(
            getattr(state, name) != getattr(self._told, name)
            for name in (
                "ranks",
                "alive",
                "dead",
                "over",
                "ending",
                "answered",
                "brought",
                "ended",
                "kept",
                "interrupted",
            )
        )
        # A thousand nodes that all stand still have nothing new to say twice a second.
        moved = self._told is None or (state.worked, self._stirred_at) != (
            self._told.worked,
            self._told_stirred_at,
        )
        if changed or now - self._told_at > (TELL_S if moved else STILL_S):
            self._told_stirred_at = self._stirred_at
            self._told, self._told_at = state, now
            self._link.tell("state", to_document(state))

    def _state(self, now: float, **more: Any) -> State:
        self._number += 1
        earlier = self._told or State(cell=self.cell)
        alive = self._alive()
        worked_at = max((moment for moment, _ in self._worked(self._may_spin()).values()), default=None)
        self._stirred_at = worked_at
        fields: dict[str, Any] = {
            "ranks": tuple(sorted(self.ranks)),
            "alive": len(alive),
            "world_size": self._declared(),
            "worked": sum(r.progress.worked for r in self.ranks.values() if r.progress),
            "dead": tuple(sorted(n for n, r in self.ranks.items() if r.end is not None)),
            "settled": self._settled(),
            "stirred_ago_s": None if worked_at is None else now - worked_at,
            "over": self._is_over(alive),
            "exit_code": self.job.poll(),
            "ending": earlier.ending,
            "answered": earlier.answered,
            "brought": earlier.brought,
            "ended": earlier.ended,
            "kept": earlier.kept,
            "interrupted": earlier.interrupted,
            "failed": earlier.failed,
        }
        return State(cell=self.cell, number=self._number, **fields | more)
