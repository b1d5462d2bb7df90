"""Endless loops of Python in ranks, or in their children, as seen by a pair of looks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

from nsadiag.agent.captures.python.nonblocking_stacks import NonblockingStacks
from nsadiag.agent.captures.worker_server import WorkerServer
from nsadiag.agent.stillness.loop_sampling import Loops, cpu_share_of, running_in
from nsadiag.agent.stillness.motion import Stance
from nsadiag.agent.watching.state import RankState
from nsadiag.evidence.documents.kernel import NO_PROCESS, KernelProcess
from nsadiag.evidence.layout import ROUNDS_HANDLER, RankDir, RunDir
from nsadiag.evidence.stacks import process_in

FEWEST_IN_VAIN = 100  # fetches from empty loaders in a row: a few epochs without a batch are nobody's fault


class LoopChecks:
    """Samples, between two captures, the processes that ran at the first one."""

    def __init__(self, directory: RunDir, stacks: NonblockingStacks) -> None:
        self._directory, self._loops = directory, Loops(stacks)
        self._ranks: Mapping[int, RankState] = {}
        self._running: dict[int, int] = {}  # pid, by rank: of the rank itself, or else of a child that runs

    def begin(self, ranks: Mapping[int, RankState], capture: int, but: Collection[int]) -> None:
        """A pair of looks at these ranks begins; those in `but` wait in a collective."""
        self._loops.begin()
        self._ranks, self._running = ranks, {}
        for number, rank in ranks.items():
            pid = running_in(_process(rank.directory, capture))
            if rank.process and pid and number not in but:
                self._running[number] = pid

    def sample(self) -> None:
        """To be called often; looks when it is time."""
        self._loops.sample(self._running)

    def forget(self) -> None:
        """There was progress."""
        self._loops.forget()

    def seen(
        self,
        stance: Stance,
        looks: tuple[int, int],
        server: Callable[[RankState, int], WorkerServer],
        longest_pause_s: float,
    ) -> Stance:
        """The stance, with the loop that its rank was seen in. `server` is who answers for a rank at a capture."""
        pid, state = self._running.get(stance.rank), self._ranks.get(stance.rank)
        fetches = state.progress.in_vain if state is not None and state.progress else 0
        loop = self._loops.of(stance.rank, in_vain=fetches >= FEWEST_IN_VAIN)
        if state is not None and state.process and state.process.pid == pid:
            asked = server(state, looks[1])
            # Both ask for the same answer, which takes a second, and only where it may help.
            ask = functools.cache(lambda: asked.ask_json(ROUNDS_HANDLER))
            loop = loop or self._loops.reported(stance.rank, ask)
            loop = self._loops.staying(stance.rank, loop, ask)
        if loop is None or pid is None or stance.motion is None:
            return stance
        procs = (_process(self._directory.rank(stance.rank), number) for number in looks)
        moved = dataclasses.replace(
            stance.motion,
            loop=dataclasses.asdict(loop),
            loop_cpu_share=cpu_share_of(pid, *procs),
            endless=loop.is_endless(longest_pause_s),
        )
        return dataclasses.replace(stance, motion=moved)


def _process(rank: RankDir, capture: int) -> KernelProcess:
    return process_in(rank.capture(capture)) or NO_PROCESS
