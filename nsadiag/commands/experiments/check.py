"""`nsadiag check`: a rehearsal on this machine, in which every call that communicates is compared before it is made."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent.job import scratch
from nsadiag.agent.rehearsal.coordinator import Coordinator
from nsadiag.agent.rehearsal.ranks import started_directly
from nsadiag.agent.rehearsal.watch import RehearsalWatch
from nsadiag.agent.watching.watch import Watch
from nsadiag.commands.run import RunRequest, RunResult, run_once
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, EXIT_USAGE
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.evidence.rehearsal import SOCKET
from nsadiag.evidence.rehearsal.calls import Answer, Rehearsal
from nsadiag.evidence.user_code import is_user


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A rehearsal, and the run directory that it left."""

    run: RunResult
    rehearsal: Rehearsal

    @property
    def exit_code(self) -> int:
        if self.run.exit_code == EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED
        return EXIT_FINDING if self.is_wrong else EXITS[self.rehearsal.answer]

    @property
    def is_wrong(self) -> bool:
        """Whether all calls agreed, and the rules found a silent error in what was recorded."""
        verdict = self.run.verdict
        return self.rehearsal.answer == "agreed" and verdict is not None and verdict.outcome == "wrong"


MOST_OF_MESSAGE = 200
ABSENT = ("ModuleNotFoundError",)
ABSENT_DEVICE = re.compile(
    r"not compiled with CUDA|No CUDA GPUs are available|no NVIDIA driver|has no attribute '_cuda_|CUDA (?:is not|driver)|invalid device ordinal"
)
EXITS: dict[Answer, int] = {
    "agreed": EXIT_HEALTHY, "differs": EXIT_FINDING, "raised": EXIT_FINDING, "undecided": EXIT_ENVIRONMENT,
    "can't": EXIT_USAGE,
}  # fmt: skip


def check_once(request: RunRequest) -> Checked:
    """Rehearses the command. Raises NsadiagError before anything was started, never after."""
    with scratch.made() as directory:
        coordinator = Coordinator(directory)
        coordinator.start()
        watches: list[RehearsalWatch] = []
        try:
            result = run_once(
                request,
                launched=started_directly(request.command),
                outlives_watch=False,
                env={SOCKET: str(coordinator.path)},
                make_watch=functools.partial(_watch, watches, coordinator),
            )
        finally:
            coordinator.close()
    rehearsal = _concluded(result, watches[0] if watches else None, coordinator)
    write_json(RunDir(path=result.directory).rehearsal, rehearsal.to_json())
    return Checked(run=result, rehearsal=rehearsal)


def _watch(watches: list[RehearsalWatch], coordinator: Coordinator, *args: Any, **more: Any) -> Watch:
    watches.append(RehearsalWatch(*args, coordinator=coordinator, **more))
    return watches[0]


def _concluded(result: RunResult, watch: RehearsalWatch | None, coordinator: Coordinator) -> Rehearsal:
    matching = coordinator.matching
    answer, why = _answer(result, watch)
    calls = watch.proof.calls if watch and watch.proof else tuple(matching.open_calls())
    ends = {} if watch is None else {str(n): rank.end for n, rank in sorted(watch.ranks.items()) if rank.end}
    return Rehearsal(
        answer=answer,
        why=why,
        matched=matching.met,
        world_size=result.verdict.world_size if result.verdict else 0,
        calls=calls if answer != "agreed" else (),
        ended={n: str(end.exit_code if end.signal is None else -end.signal) for n, end in ends.items()},
    )


def _answer(result: RunResult, watch: RehearsalWatch | None) -> tuple[Answer, str]:
    verdict = result.verdict
    if watch is not None and watch.proof is not None:
        return "differs", watch.proof.why
    if watch is not None and watch.stopped == "hang":
        if verdict is not None and verdict.certainty == "proven":
            return "differs", "every rank waits for another one"
        return "undecided", "nothing moves, and something outside the job could still move it"
    if missing := _missing(result.directory):
        return "can't", missing
    if verdict is not None and verdict.outcome == "crashed":
        return "raised", verdict.summary
    if watch is None or watch.stopped is not None:
        return "undecided", "it was stopped before its end"
    return "agreed", "the script came to its end"


def _missing(directory: Path) -> str:
    """Whatever this machine lacks and a rank asked for, with the line; empty if no rank ended for want of anything."""
    from nsadiag.analysis.load import load_run

    for rank in load_run(directory).ranks:
        raised = rank.exception
        if raised is not None and (raised.type in ABSENT or ABSENT_DEVICE.search(raised.message)):
            asked = next((f for f in reversed(raised.frames) if is_user(f.file)), None)
            at = f" at {asked.file}:{asked.line}" if asked else ""
            return f"rank {rank.rank} asked for what is not here: {raised.type}: {raised.message[:MOST_OF_MESSAGE]}{at}"
    return ""
