"""`nsadiag check`: a rehearsal on this machine, in which every call that communicates is compared before it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from nsadiag.agent.job import scratch
from nsadiag.agent.rehearsal import isolated
from nsadiag.agent.rehearsal.coordinator import Coordinator, coordinating
from nsadiag.agent.rehearsal.ranks import PROGRAM_AT, started_directly
from nsadiag.commands import output
from nsadiag.commands.run import RunRequest, RunResult, check_request, load_analysis, name_of, run_once
from nsadiag.errors import (
    EXIT_ENVIRONMENT,
    EXIT_FINDING,
    EXIT_HEALTHY,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    UsageError,
)  # fmt: skip
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json
from nsadiag.evidence.rehearsal import BESIDE, CUDA, FILES, HOLD, MEMORY, SLEEPS, SOCKET, STEPS
from nsadiag.evidence.rehearsal.beside import Beside, to_json
from nsadiag.evidence.rehearsal.calls import Answer, Rehearsal
from nsadiag.evidence.rehearsal.isolation import Isolation
from nsadiag.evidence.rehearsal.namespaces import Apart
from nsadiag.evidence.rehearsal.touches import Hold, Touch, came_about, gave_time, orders, read_touches

if TYPE_CHECKING:
    from nsadiag.agent.rehearsal.matching import Matching
    from nsadiag.agent.rehearsal.watch import RehearsalWatch


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


MEMORY_SHARE = 0.8  # of the memory that is free: for all ranks together
LEAST_MEMORY = 2**30
LOOPS = "a rank goes around a loop that nothing can end"
RAISED = "rank_exception"
ACCUSES = ("differs", "raised")
EXITS: dict[Answer, int] = {
    "agreed": EXIT_HEALTHY, "differs": EXIT_FINDING, "raised": EXIT_FINDING, "undecided": EXIT_ENVIRONMENT,
    "can't": EXIT_USAGE,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Settings of a rehearsal besides those of a run."""

    ranks: int | None = None  # in the place of what the command says
    steps: int = 0  # after which a loop over batches ends, on all ranks alike; 0: none
    in_place: bool = False  # what the script writes stays
    network: bool = False
    env: Mapping[str, str] = field(default_factory=dict)  # more for the ranks
    room: Path | None = None  # where what the script writes is kept, for the next rehearsal that is given it
    cwd: Path | None = None
    beside: tuple[
        Follower, ...
    ] = ()  # once the ranks have come to their end; none where they cannot be kept apart


@dataclass(frozen=True, kw_only=True)
class Follower:
    """The program on one rank, after the ranks, in their processes' place: without a watch. `out`: its run directory."""

    command: list[str]
    out: Path
    env: Mapping[str, str]

    @property
    def ended(self) -> Path:
        """The file that comes to hold its exit code."""
        return self.out / "ended"


def check_once(request: RunRequest, options: CheckOptions | None = None) -> Checked:
    """Rehearses the command. Raises NsadiagError before anything was started, never after.

    A script that ends for want of a GPU is rehearsed once more, with the CPU in its place.
    """
    options = options or CheckOptions()
    check_request(request)
    if options.ranks and started_directly(request.command, options.ranks) == request.command:
        raise UsageError(
            "--nproc is for a line of torchrun's", "set the number of ranks in the launcher's own words"
        )
    run = output.prepare(request.out, name_of(request.command), force=request.force)
    request = dataclasses.replace(request, out=run.path, force=True)
    began = time.monotonic()
    found = _rehearsed(request, options, {})
    from nsadiag.commands.experiments.absent import DEVICE  # with the analysis, while the ranks import torch

    more = {}
    if found.checked.rehearsal.answer == "can't" and DEVICE.search(found.checked.rehearsal.why):
        left_s = max(request.timeout_s - (time.monotonic() - began), 1.0)
        more = {CUDA: "cpu"}
        found = _rehearsed(dataclasses.replace(request, timeout_s=left_s), options, more)
    if found.checked.rehearsal.answer in ACCUSES and gave_time(found.touches):
        # It may fail for nothing but that sleeps took no time.
        left_s = max(request.timeout_s - (time.monotonic() - began), 1.0)
        found = _rehearsed(dataclasses.replace(request, timeout_s=left_s), options, {**more, SLEEPS: "real"})
    return _in_other_orders(request, options, more, found, began)


def _in_other_orders(
    request: RunRequest, options: CheckOptions, more: dict[str, str], found: _Rehearsed, began: float
) -> Checked:
    """The answer; where all calls agreed, and no call orders what two ranks did to a file, one with the other order of the two.

    Only of an order that was seen to come about, and of files that the first rehearsal has not left behind.
    """
    checked, out = found.checked, request.out
    is_apart = checked.rehearsal.isolation.files_apart and options.room is None
    if out is None or checked.rehearsal.answer != "agreed" or checked.is_wrong or not is_apart:
        return checked
    for hold in orders(found.touches):
        took_s = time.monotonic() - began
        left_s = request.timeout_s - took_s
        if left_s < took_s:
            break
        left = dataclasses.replace(request, timeout_s=left_s)
        again = _instead(out, functools.partial(_rehearsed, left, options, more, hold))
        if again.tells:
            return again.checked
        if again.checked.run.exit_code == EXIT_INTERRUPTED:
            break
    return checked


def _instead(out: Path, rehearse: Callable[[], _Rehearsed]) -> _Rehearsed:
    """A rehearsal into the same directory, where what it leaves stays only if it tells; else what was there before."""
    first = out.rename(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    tells = False
    try:
        make_private_dir(out)
        found = rehearse()
        tells = found.tells
        return found
    finally:
        shutil.rmtree(first if tells else out, ignore_errors=True)
        if not tells:
            first.rename(out)


@dataclass(frozen=True, kw_only=True)
class _Rehearsed:
    """One rehearsal, and what its ranks did to files."""

    checked: Checked
    touches: list[Touch]
    is_held: bool  # the order that was asked for came about

    @property
    def tells(self) -> bool:
        """Whether the order that was asked for came about, and led to what cannot go on."""
        return self.is_held and self.checked.rehearsal.answer in ACCUSES


def _rehearsed(
    request: RunRequest, options: CheckOptions, more: dict[str, str], hold: Hold | None = None
) -> _Rehearsed:
    assert request.out is not None
    tree = str(options.cwd or Path.cwd())
    ordered = {FILES: tree, **({HOLD: hold.to_json()} if hold else {})}
    with scratch.made() as directory, scratch.made() as room, _followers(options.beside) as following:
        coordinator = Coordinator(directory, hold)
        coordinator.start()
        watches: list[RehearsalWatch] = []
        load_analysis()  # while torch is imported
        report = directory / "isolation.json"
        own = [
            make_private_dir(each.out) for each in options.beside if not each.out.is_relative_to(request.out)
        ]
        kept = (request.out, *own)
        apart = isolated.Request(report=str(report), apart=Apart(
            room=str(options.room or room), lasting=options.room is not None, kept=tuple(str(path.resolve()) for path in kept), files=not options.in_place,
            network=not options.network,
        ))  # fmt: skip
        line = started_directly(request.command, options.ranks)
        speaks = line == request.command
        try:
            result = run_once(
                request,
                launched=apart.line(line),
                outlives_watch=False,
                env={**_settings(coordinator, options), **ordered, **options.env, **following, **more},
                cwd=options.cwd,
                make_watch=functools.partial(_watch, watches, coordinator, hold, request.out, speaks=speaks),
            )
            isolation = Isolation(**read_json(report, {}))
        finally:
            coordinator.close()
        touches = list(read_touches(directory))
        is_held = hold is not None and came_about(coordinator.path)
    found = _concluded(result, watches[0] if watches else None, coordinator.matching)
    order = hold.words() if hold else ""
    found = dataclasses.replace(found, isolation=isolation, on_cpu=CUDA in more, order=order)
    write_json(RunDir(path=result.directory).rehearsal, found.to_json())
    return _Rehearsed(checked=Checked(run=result, rehearsal=found), touches=touches, is_held=is_held)


@contextlib.contextmanager
def _followers(every: tuple[Follower, ...]) -> Iterator[dict[str, str]]:
    """The variable that asks for them, within the block; each has a coordinator of its own."""
    with contextlib.ExitStack() as stack:
        asked = []
        for each in every:
            words = started_directly(each.command)
            if words == each.command:
                break  # the line is torchrun's to understand
            directory = stack.enter_context(scratch.made())
            coordinator = stack.enter_context(coordinating(directory))
            own = {
                SOCKET: str(coordinator.path), "NSADIAG_SOCKET_DIR": str(directory), "NSADIAG_PROBES": "none",
                "NSADIAG_RUN_DIR": str(each.out.resolve()),
            }  # fmt: skip
            env = {**own, **each.env}
            asked.append(Beside(argv=words[PROGRAM_AT:], env=env, ended=str(each.ended.resolve())))
        yield {BESIDE: to_json(asked)} if asked else {}


def _settings(coordinator: Coordinator, options: CheckOptions) -> dict[str, str]:
    """Variables for the ranks."""
    memory = max(int(psutil.virtual_memory().available * MEMORY_SHARE), LEAST_MEMORY)
    steps = {STEPS: str(options.steps)} if options.steps else {}
    return {SOCKET: str(coordinator.path), MEMORY: str(memory), **steps}


def _watch(
    watches: list[RehearsalWatch],
    coordinator: Coordinator,
    hold: Hold | None,
    out: Path,
    *args: Any,
    **more: Any,
) -> RehearsalWatch:
    from nsadiag.agent.rehearsal.watch import RehearsalWatch  # while the ranks import torch

    if hold is not None:
        write_json(RunDir(path=out).order, dataclasses.asdict(hold))
    watches.append(RehearsalWatch(*args, coordinator=coordinator, **more))
    return watches[0]


def _concluded(result: RunResult, watch: RehearsalWatch | None, matching: Matching) -> Rehearsal:
    calls = watch.proof.calls if watch and watch.proof else tuple(matching.open_calls())
    ends = {} if watch is None else {str(n): rank.end for n, rank in sorted(watch.ranks.items()) if rank.end}
    found = Rehearsal(
        answer="undecided",
        why="",
        matched=matching.met,
        world_size=result.verdict.world_size if result.verdict else 0,
        calls=calls,
        ended={n: str(end.exit_code if end.signal is None else -end.signal) for n, end in ends.items()},
    )
    answer, why = _answer(result, watch, found)
    return dataclasses.replace(found, answer=answer, why=why, calls=calls if answer != "agreed" else ())


def _answer(result: RunResult, watch: RehearsalWatch | None, found: Rehearsal) -> tuple[Answer, str]:
    verdict = result.verdict
    if watch is not None and watch.proof is not None:
        return "differs", watch.proof.why
    if watch is not None and watch.stopped == "hang":
        # It had not ended yet: peers wait for a rank while its interpreter shuts down.
        if verdict is not None and verdict.cls == RAISED:
            return "raised", verdict.summary
        if verdict is not None and verdict.certainty == "proven":
            return (
                "differs",
                LOOPS if verdict.cls == "livelock_user_code" else "every rank waits for another one",
            )
        return "undecided", "nothing moves, and something outside the job could still move it"
    from nsadiag.analysis.load import load_run
    from nsadiag.commands.experiments.absent import absent

    if missing := absent(load_run(result.directory), found, watch.job.poll() if watch else None):
        return "can't", missing
    if verdict is not None and verdict.outcome == "crashed":
        return "raised", verdict.summary
    if watch is None or watch.stopped is not None:
        return "undecided", "it was stopped before its end"
    return "agreed", "the script came to its end"
