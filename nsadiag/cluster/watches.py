"""One job watched on several nodes: each watches its own ranks as ever, and node 0 decides for all.

A healthy rank that waits for one on another node which moves is not hung: what moves anywhere is progress everywhere,
and a look that might call the job stuck is taken on all nodes at the same moment and judged as one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.job.launch import Job
from nsadiag.agent.stillness.judgement import Judgement
from nsadiag.agent.stillness.motion import Motion, joined
from nsadiag.agent.watching.state import Pair, RankState, WatchOptions
from nsadiag.agent.watching.watch import LAUNCHER_GRACE_S, POLL_S, Watch
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.protocol.notes import (
    Looked,
    Order,
    State,
    looked_of,
    state_of,
    to_document,
)
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir, this_node
from nsadiag.evidence.spans import spelled

TELL_S = 0.5
STILL_S = 5.0  # where nothing has changed
BROUGHT_S = 60.0  # evidence of a few ranks that is wanted
LOOKED_S = 30.0  # captures of a loaded machine take long
ANSWERED_S = 30.0
ENDING_S = 3.0
ALONE_S = 20.0
APART_S = 4.0


class Among(Watch):
    """The common base of both kinds of watch."""

    def __init__(self, job: Job, directory: RunDir, options: WatchOptions, *, cell: int, **more: Any) -> None:
        super().__init__(job, directory, options, **more)
        self.cell = cell
        self._home = make_private_dir(directory.node(this_node()))

    def _is_here(self, meta: dict[str, Any]) -> bool:
        # On a shared file system the ranks of other nodes lie beside ours, and their pids mean nothing here.
        return bool(meta.get("host") == this_node())

    def _last_look(self) -> None:
        """Looks are taken on all nodes together."""

    def _failed(self, error: Exception) -> None:
        """The other nodes have to know at once: this one has no part in the job's judgement any more."""
        raise error

    def reduce(self, crowd: Crowd) -> None:
        """A digest of the local ranks; where the disk is full, node 0 gets none."""
        look = self.looks[-1] if self.looks else None
        told = {"look": look.second, "motions": look.motions} if look else {"look": 0}
        with contextlib.suppress(OSError):
            crowd.reduce(self.directory, host=this_node(), ranks=sorted(self.ranks), **told)

    def _declared(self) -> int:
        """The expected number of ranks, as far as a local rank has reported it."""
        headers = (r.progress.pulse.header for r in self.ranks.values() if r.progress)
        return max((header.world_size for header in headers), default=0)


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The handling of evidence for more than `few` ranks, where it is too much for all of it to travel."""

    few: int
    reduce: Callable[..., Any]  # digests.make.write_digest
    choose: Callable[[RunDir], tuple[int, ...]]  # ranks whose evidence is worth having, by the nodes' digests


class LeadWatch(Among):
    """Node 0's: `members` are the other nodes that have a part of the job, and `names` what they are called."""

    def __init__(
        self,
        job: Job,
        directory: RunDir,
        options: WatchOptions,
        *,
        cell: int,
        hub: Hub,
        members: list[int],
        names: dict[int, str],
        gather: Callable[[LeadWatch], None],
        crowd: Crowd,
        **more: Any,
    ) -> None:
        """`gather` is called where the evidence of all nodes is to be put together before a judgement."""
        super().__init__(job, directory, options, cell=cell, **more)
        self._hub, self.members, self._names, self._gather = hub, members, names, gather
        self._crowd = crowd
        self._order = Order(cell=cell)
        self._states: dict[int, State] = {}
        self._notes: dict[int, Any] = {}  # what those were read from
        self._over_since: float | None = None
        self._remote_work: dict[int, tuple[float, str]] = {}
        self._unseen: list[int] = []
        self._apart: dict[int, float] = {}  # node to since when a rank has lived there and here
        self.lost: dict[int, float] = {}  # node to when it was last heard, in seconds from the start
        self._give(Order(cell=cell))

    def state(self, member: int) -> State:
        """The last that was heard of that node in this job."""
        return self._states.get(member) or State(cell=self.cell)

    def _declared(self) -> int:
        """On a node of its own, node 0 has no ranks that could say."""
        return max([super()._declared(), *(state.world_size for state in self._states.values())])

    def _give(self, order: Order) -> None:
        self._order = order
        self._hub.tell("order", to_document(order))

    # -- what moves elsewhere -------------------------------------------------------------------------

    def _feel_pulses(self) -> None:
        super()._feel_pulses()
        for member in self.members:
            if self._hub.is_lost(member) or self.state(member).failed:
                self.note_lost(member)
            else:
                self.lost.pop(member, None)
            note = self._hub.heard(member, "state")
            if note is self._notes.get(member):
                continue
            self._notes[member] = note
            found = state_of(note)
            if found is not None and found.cell == self.cell and found.number != self.state(member).number:
                before, self._states[member] = self.state(member), found
                self._check_apart(member, found)
                self._hear(before, found)

    def note_lost(self, member: int) -> None:
        """That node takes part no more."""
        self.lost.setdefault(member, self._hub.last_heard(member) - self._started)

    def _hear(self, before: State, now: State) -> None:
        if now.interrupted and self._ending_since_ns is None:
            raise KeyboardInterrupt
        if (now.worked, now.ranks, now.dead) != (before.worked, before.ranks, before.dead):
            self._waiting -= set(now.ranks) if now.worked != before.worked else set()
            if self._ending_since_ns is None:
                self._progress()
        if now.stirred_ago_s is not None:
            moment = time.monotonic() - now.stirred_ago_s
            if moment > self.patience.stirred:
                self.patience.stir(moment, moment, settled=self._settled())

    def _check_apart(self, member: int, now: State) -> None:
        """Two jobs with the same ranks would be taken for one, and write over each other's evidence.

        A rank that an elastic launcher has moved to another node lives on one of them at a time, but for a moment.
        """
        here = {number for number, rank in self.ranks.items() if rank.end is None}
        twice = sorted(here & set(now.ranks) - set(now.dead))
        if not twice:
            self._apart.pop(member, None)
            return
        since = self._apart.setdefault(member, time.monotonic())
        if time.monotonic() - since > APART_S and self._ending_since_ns is None:
            raise UsageError(
                f"rank {twice[0]} has appeared on two nodes: each runs a job of its own",
                "tell the launcher of the other nodes, as for torchrun: --nnodes, --node-rank, --master-addr, --master-port",
            )

    def _settled(self) -> bool:
        return super()._settled() or any(state.settled for state in self._states.values())

    def _living(self) -> int:
        """Ranks elsewhere."""
        return sum(self.state(m).alive for m in self.members if m not in self.lost)

    def _is_over(self, alive: list[RankState]) -> bool:
        here = super()._is_over(alive)
        elsewhere = all(self.state(m).over or m in self.lost for m in self.members)
        if here and elsewhere:
            return True
        # Launchers wait for each other for minutes where all ranks are gone.
        someone = here or any(self.state(m).over for m in self.members)
        if not someone or alive or self._living():
            self._over_since = None
            return False
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() - self._over_since > LAUNCHER_GRACE_S

    def _is_due(self, alive: list[RankState]) -> bool:
        return (bool(alive) or self._living() > 0) and self.patience.due(time.monotonic())

    def run(self) -> None:
        super().run()
        if self.left_running:
            # They leave their ranks as well, but need not look on any longer.
            self._give(dataclasses.replace(self._order, stop="hang"))

    # -- a look on all nodes --------------------------------------------------------------------------

    def look(self, apart_s: float | None = None) -> Judgement:
        self._give(dataclasses.replace(self._order, look=self.captures.count + 1))
        judgement = super().look(apart_s)
        self._give(dataclasses.replace(self._order, waiting=tuple(sorted(self._waiting))))
        return judgement

    def _joined(self, pair: Pair) -> list[Motion]:
        deadline = time.monotonic() + LOOKED_S
        found: dict[int, Looked] = {}
        while time.monotonic() < deadline:
            interrupts.check()
            for member in (m for m in self.members if m not in found):
                told = looked_of(self._hub.heard(member, "looked"))
                if told is not None and (told.cell, told.first) == (self.cell, pair.first):
                    found[member] = told
            self._feel_pulses()
            if all(m in found or m in self.lost or self.state(m).over for m in self.members):
                break
            self._note_deaths(POLL_S)
        self._unseen = [m for m in self.members if m not in found and not self.state(m).over]
        now = time.monotonic()
        self._remote_work = {
            rank: (now - ago, did) for told in found.values() for rank, (ago, did) in told.worked.items()
        }
        stances = [*pair.stances, *(stance for told in found.values() for stance in told.stances)]
        world = {*self.ranks, *(rank for state in self._states.values() for rank in state.ranks)}
        world |= set(range(self._declared()))
        return joined(stances, world, quiet_s=self.patience.quiet_s(now))

    def _worked(self, but: set[int]) -> dict[int, tuple[float, str]]:
        elsewhere = {rank: told for rank, told in self._remote_work.items() if rank not in but}
        return super()._worked(but) | elsewhere

    def _all_seen(self, judgement: Judgement, reason: str) -> tuple[Judgement, str]:
        silent = [m for m in self._unseen if m not in self.lost]
        if judgement == "still" and silent:
            return "unobserved", f"{self._called(silent)} took no snapshot in time; elsewhere {reason}"
        gone = [m for m in self.members if m in self.lost]
        return judgement, reason + (f"; {self._called(gone)} is lost" if gone else "")

    def _called(self, nodes: list[int]) -> str:
        return ", ".join(f"node {n} ({self._names[n]})" for n in nodes)

    def _progress(self) -> None:
        # What ranks say when their peers are being ended is no progress.
        if self._ending_since_ns is None:
            super()._progress()
            self._remote_work = {}

    def _answer(self, capture: int) -> None:
        many = self._declared() > self._crowd.few
        self._give(dataclasses.replace(self._order, answer=capture, many=many))
        self.stopped = "hang"
        self.write()
        self._wait(lambda m: self.state(m).answered >= capture or self.state(m).over, ANSWERED_S)
        self.want()
        self._gather(self)
        super()._answer(capture)

    def want(self, *, last: bool = False) -> None:
        """Fetch the evidence of the ranks, out of very many, that the nodes' digests show to matter."""
        if not self._order.many:
            return
        self.reduce(self._crowd)
        ranks = self._crowd.choose(self.directory)
        number = self._order.want + 1
        self._give(dataclasses.replace(self._order, wanted=spelled(ranks), want=number, last=last))
        self._wait(lambda m: self.state(m).brought >= number, BROUGHT_S)

    # -- the end --------------------------------------------------------------------------------------

    def _end_everything(self) -> None:
        """Everywhere at once: a rank that lost its peer because we ended that one must not pass for a victim of the job."""
        self._discover(at_once=True)  # what has ended by now was not ended by us
        self._ending_since_ns = time.monotonic_ns()
        many = self._declared() > self._crowd.few
        self._give(dataclasses.replace(self._order, stop=self.stopped or "over", many=many))
        self._wait(lambda m: self.state(m).ending, ENDING_S)
        super()._end_everything()

    def _wait(self, is_so: Callable[[int], bool], seconds: float) -> None:
        """Until it is so of every node that is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._feel_pulses()
            if all(is_so(m) or m in self.lost for m in self.members):
                return
            self._note_deaths(POLL_S)
