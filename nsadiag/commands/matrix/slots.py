"""Cells side by side, as many as there is room for; which of them ran together changes nothing but the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from nsadiag.agent import interrupts
from nsadiag.commands.matrix.cells import CellResult, Outcome
from nsadiag.engines.local import WarmLauncher
from nsadiag.engines.pool import LauncherPool
from nsadiag.engines.room import Machine, Need, fits, free_gpus, has_memory

POLL_S = 0.2
# Small cells may go ahead of one that has no room yet, but not for ever.
OVERTAKEN_AT_MOST = 8
LOOK_AHEAD = 32
LAUNCHER_STARTS_S = 6.0  # until we have seen one


def cheap_to_dear(waiting: Sequence[CellResult], effort: Callable[[CellResult], float]) -> list[CellResult]:
    """Cells by effort, cheapest first: small ones answer early, and predict the large ones.

    Of equal effort, those with one environment follow each other, and the next effort begins with the last one's:
    its launcher still waits.
    """
    environments: list[dict[str, str]] = []
    for result in waiting:
        if result.cell.env not in environments:
            environments.append(result.cell.env)
    levels = {value: place for place, value in enumerate(sorted({effort(result) for result in waiting}))}

    def key(result: CellResult) -> tuple[int, int]:
        level, place = levels[effort(result)], environments.index(result.cell.env)
        return level, place if level % 2 == 0 else -place

    return sorted(waiting, key=key)


@dataclass(kw_only=True)
class Ticket:
    """A cell that runs."""

    result: CellResult
    need: Need
    launcher: WarmLauncher
    is_fresh: bool
    started: float = field(default_factory=time.monotonic)
    together_s: float = 0.0


@dataclass(kw_only=True)
class Slots:
    """Starts cells in the order given, as far as there is room. All but `run_one` is called in the caller's thread."""

    pool: LauncherPool
    machine: Machine
    most: int | None  # cells at once; None: as many as the cores allow, and as pays
    need: Callable[[CellResult], Need]
    before: Callable[[CellResult, bool], None]  # the cell is about to start; whether others run
    run_one: Callable[[CellResult, WarmLauncher], Outcome]  # in a thread of its own
    # It is done; the share of its time in which others ran.
    after: Callable[[CellResult, Outcome, float], None]
    seconds: Callable[[CellResult], float | None]
    rank_mib: Callable[[CellResult], float | None]
    _running: dict[Future[Outcome], Ticket] = field(default_factory=dict)
    _overtaken: dict[str, int] = field(default_factory=dict)
    _launcher_s: float = LAUNCHER_STARTS_S
    _counted: float = 0.0

    def run(self, waiting: Sequence[CellResult]) -> None:
        """Until all are done. After Ctrl-C, or a failure of our own, none runs any more; those that were done are noted."""
        queue = list(waiting)
        threads = ThreadPoolExecutor(self.most or max(self.machine.cores, 1), "nsadiag-slot")
        try:
            while queue or self._running:
                while (place := self._next(queue)) is not None:
                    self._start(threads, queue.pop(place))
                while not self._collect(POLL_S):
                    interrupts.check()
        except BaseException:
            with interrupts.held_off():
                interrupts.ask()
                wait(self._running)
                self._collect(0, ended_by_us=True)
            raise
        finally:
            with interrupts.held_off():
                threads.shutdown()

    def _next(self, queue: Sequence[CellResult]) -> int | None:
        """The place in the queue of the cell to start now, if there is room for one and another slot pays."""
        running = [ticket.need for ticket in self._running.values()]
        for place, result in enumerate(queue[:LOOK_AHEAD]):
            if fits(self.need(result), running, self.machine, most=self.most):
                if running and not self._may_stand_beside(result, queue[place:]):
                    return None
                for passed in queue[:place]:
                    self._overtaken[passed.cell.id] = self._overtaken.get(passed.cell.id, 0) + 1
                return place
            if self._overtaken.get(result.cell.id, 0) >= OVERTAKEN_AT_MOST:
                return None
        return None

    def _may_stand_beside(self, result: CellResult, queue: Sequence[CellResult]) -> bool:
        if not has_memory(result.cell.world_size, self.rank_mib(result)):
            return False
        return self.most is not None or self._pays(result, queue)

    def _pays(self, result: CellResult, queue: Sequence[CellResult]) -> bool:
        """Whether a launcher more takes less time to start than it would save."""
        if self.pool.has(self._environment(result, self.need(result))):
            return True
        room = self.machine.cores // 2
        known = [self.seconds(other) for other in queue if other.cell.world_size <= room]
        if any(seconds is None for seconds in known):
            return False
        return sum(seconds or 0.0 for seconds in known) / 2 > self._launcher_s

    def _environment(self, result: CellResult, need: Need) -> dict[str, str]:
        """The cell's, with the GPUs that are to be its own where it does not get them all."""
        if not need.gpus or self.most == 1 or need.gpus >= len(self.machine.gpus):
            return result.cell.env
        taken = [gpu for ticket in self._running.values() for gpu in ticket.result.gpus]
        mine = free_gpus(self.machine, taken, need.gpus)
        return {**result.cell.env, "CUDA_VISIBLE_DEVICES": ",".join(mine)}

    def _start(self, threads: ThreadPoolExecutor, result: CellResult) -> None:
        self._count_together()
        need = self.need(result)
        env = self._environment(result, need)
        named = env.get("CUDA_VISIBLE_DEVICES", ",".join(self.machine.gpus))
        result.gpus = tuple(name for name in named.split(",") if name) if need.gpus else ()
        is_fresh = not self.pool.has(env)
        self.before(result, bool(self._running))
        # Between the launcher and its ticket nothing may come: who has no ticket is not waited for.
        with interrupts.held_off():
            launcher = self.pool.take(env)
            ticket = Ticket(result=result, need=need, launcher=launcher, is_fresh=is_fresh)
            self._running[threads.submit(self.run_one, result, launcher)] = ticket

    def _collect(self, seconds: float, *, ended_by_us: bool = False) -> bool:
        """Notes those that are done, and says whether any is. Raises what a cell that we failed at raised."""
        done, _ = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        self._count_together()
        for future in done:
            if ended_by_us and future.exception() is not None:
                continue
            outcome = future.result()
            ticket = self._running.pop(future)
            self.pool.give(ticket.launcher)
            began = outcome.costs.get("start_s")
            if ticket.is_fresh and began:
                self._launcher_s = float(began)
            lasted = max(time.monotonic() - ticket.started, 1e-9)
            self.after(ticket.result, outcome, min(ticket.together_s / lasted, 1.0))
        return bool(done)

    def _count_together(self) -> None:
        """Before anything starts or ends: the time since then belongs to all that ran in it."""
        now = time.monotonic()
        if len(self._running) > 1:
            for ticket in self._running.values():
                ticket.together_s += now - self._counted
        self._counted = now
