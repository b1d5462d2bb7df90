"""A matrix whose cells are jobs of somebody else's: submits them, waits for what they write, and ends them when asked."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.cluster.protocol.tokens import new_token
from nsadiag.commands import output
from nsadiag.commands.batch import hold, node
from nsadiag.commands.batch.lost_job import lost
from nsadiag.commands.batch.options import nodes_of
from nsadiag.commands.matrix.cells import CellResult, Outcome, announce, directory_of, from_disk, restored
from nsadiag.commands.matrix.run import MatrixRequest, MatrixState
from nsadiag.engines.batch import BatchEngine, BatchOptions, JobState, Phase, Task
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json, write_private
from nsadiag.spec import Cell

TOKEN = "token"
LOOK_S = 1.0  # at the files, at most
# From the end of a job on until its result must be there: other machines' files may be seen late.
LATE_S = 10.0
LEAVING_S = 15.0  # from the last cell's verdict on, for the agents to end their launchers
JOB = "job.json"
AROUND_S = 300.0  # what a job takes besides its cell's own time: torch's imports, two looks, the judgement


def task_of(cell: Cell, *, spec: str, run: RunDir, logs: Path, options: BatchOptions) -> Task:
    """The cell's job."""
    nodes = nodes_of(cell, options.nodes)
    limit_s = max(options.time_s - AROUND_S, options.time_s / 2) if options.time_s else None
    return Task(
        name=cell.id,
        module=node.MODULE,
        arguments=node.arguments(spec, run, cell, limit_s=limit_s, token=logs / TOKEN),
        nodes=nodes,
        ranks_per_node=cell.world_size // nodes,
        gpus_per_node=-(-cell.gpus // nodes),
        seconds=cell.timeout_s + AROUND_S,
    )


def plan(request: MatrixRequest, engine: BatchEngine, options: BatchOptions) -> str:
    """The jobs that would be submitted, as text."""
    run = RunDir(path=(request.out or Path("artifacts") / request.matrix.name).resolve())
    logs = logs_of(run, request.engine)
    tasks = [
        task_of(cell, spec=request.source, run=run, logs=logs, options=options) for cell in request.cells
    ]
    return engine.plan(tasks, logs)


def through(request: MatrixRequest, engine: BatchEngine, options: BatchOptions) -> MatrixRequest:
    """The same, with its cells run by the engine."""
    living: set[str] | None = None

    def restore(run: RunDir, cell: Cell) -> CellResult:
        """As `restored`; but a cell whose job still waits or runs, though nobody waited for it, is left alone."""
        nonlocal living
        living = _living(run, engine) if living is None else living
        if _job_of(run, cell) in living and from_disk(run, cell) is None:
            return CellResult(cell=cell)
        with hold.alone(directory_of(run, cell)):
            # An agent that has not begun by now is to find that the cell is no longer its own.
            _disown(run, cell)
            return restored(run, cell)

    return replace(request, runner=lambda state: Batched(state, engine, options).run(), restore=restore)


def _living(run: RunDir, engine: BatchEngine) -> set[str]:
    """Jobs of the matrix that have not ended, as far as anyone knows: asked once for all of them."""
    known = {read_json(path, {}).get("id") for path in run.path.glob("cells/*/job.json")}
    ids = sorted(job for job in known if job)
    return {job for job, state in engine.states(ids).items() if state.phase != "ended"} if ids else set()


def _job_of(run: RunDir, cell: Cell) -> str | None:
    job = read_json(directory_of(run, cell).path / JOB, {}).get("id")
    return str(job) if job else None


def _disown(run: RunDir, cell: Cell) -> None:
    """The next driver submits the cell anew."""
    path = directory_of(run, cell).path / JOB
    if (about := read_json(path)) is not None:
        write_json(path, about | {"id": None, "cancelled": about.get("id")})


def logs_of(run: RunDir, engine: str) -> Path:
    """The directory of the jobs' output."""
    return run.path / engine


class Batched:
    """Runs a matrix through an engine; `run` is called once."""

    def __init__(self, state: MatrixState, engine: BatchEngine, options: BatchOptions) -> None:
        self._state, self._engine, self._options = state, engine, options
        self._name = state.request.engine
        self._run, self._logs = state.directory, logs_of(state.directory, self._name)
        self._jobs: dict[str, CellResult] = {}  # by id, of those that are not done
        self._told: dict[str, JobState] = {}
        self._ended: dict[str, float] = {}  # by id, when the scheduler first said so
        self._finished: list[str] = []  # jobs whose cell is done

    def run(self) -> None:
        """Until every cell has a verdict. A Ctrl-C cancels the jobs that are left."""
        self._skip()
        waiting = self._state.begin()
        try:
            with interrupts.held_off():
                self._take_up_or_submit(waiting)
            asked = 0.0
            while self._jobs:
                interrupts.check()
                if time.monotonic() - asked > self._engine.ask_s:
                    asked = time.monotonic()
                    self._ask()
                self._collect()
                time.sleep(min(LOOK_S, self._engine.ask_s))
            self._see_them_end()
        except BaseException:
            with interrupts.held_off():
                self._cancel()
            raise
        finally:
            with interrupts.held_off():
                self._engine.close()

    def _skip(self) -> None:
        """Cells that cannot do without more GPUs than a job gets; how many that is without the option, nobody says."""
        if self._options.gpus_per_node is None:
            return
        for result in self._state.results:
            most = nodes_of(result.cell, self._options.nodes) * self._options.gpus_per_node
            if result.state != "done" and result.cell.gpus > most:
                result.state = "skipped"

    def _take_up_or_submit(self, waiting: Sequence[CellResult]) -> None:
        fresh = []
        for result in waiting:
            if job := _job_of(self._run, result.cell):
                self._jobs[job] = result
            else:
                fresh.append(result)
        spec, options = self._state.request.source, self._options
        tasks = [task_of(r.cell, spec=spec, run=self._run, logs=self._logs, options=options) for r in fresh]
        if not tasks:
            return
        # Whoever can read the directory may speak with its agents, and nobody else.
        token = make_private_dir(self._logs) / TOKEN
        if not token.exists():
            write_private(token, new_token())
        for result in fresh:
            announce(self._run, result)
        ids = self._engine.submit(tasks, self._logs)
        for result, job in zip(fresh, ids, strict=True):
            about = {"engine": self._name, "id": job, "submitted_at": output.now()}
            write_json(directory_of(self._run, result.cell).path / JOB, about)
            self._jobs[job] = result
        count = f"{len(ids)} jobs" if len(ids) > 1 else "one job"
        self._state.progress.note(f"submitted {count} to {self._name}: {', '.join(_in_short(ids))}")

    # -- what became of them ------------------------------------------------------------------------

    def _collect(self) -> None:
        """Those whose result is there; and those that have ended without one, long enough ago."""
        for job, result in list(self._jobs.items()):
            if job in self._told and self._told[job].phase == "pending":
                continue
            found = self._result(result.cell)
            if found is not None and found.verdict is not None:
                self._done(
                    job, result, Outcome(wall_s=found.wall_s or 0.0, verdict=found.verdict, costs=found.costs)
                )
            elif job in self._ended and time.monotonic() - self._ended[job] > LATE_S:
                self._lost(job, result)

    def _result(self, cell: Cell) -> CellResult | None:
        with contextlib.suppress(OSError):
            # NFS believes what it remembers of a directory until somebody opens it.
            list(directory_of(self._run, cell).path.iterdir())
        return from_disk(self._run, cell)

    def _see_them_end(self) -> None:
        """A cell is done before its job is; one that does not end, as where a node is gone, is cancelled."""
        deadline = time.monotonic() + LEAVING_S
        while True:
            states = self._engine.states(self._finished) if self._finished else {}
            self._finished = [job for job, state in states.items() if state.phase not in ("ended", "untold")]
            if not self._finished or time.monotonic() > deadline:
                break
            interrupts.check()
            time.sleep(min(LOOK_S, self._engine.ask_s))
        self._engine.cancel(self._finished)

    def _done(self, job: str, result: CellResult, outcome: Outcome) -> None:
        self._jobs.pop(job)
        self._finished.append(job)
        self._state.after(result, outcome, 0.0)

    def _lost(self, job: str, result: CellResult) -> None:
        epitaph = self._engine.epitaph(job, self._logs)
        verdict = lost(job, result.cell, epitaph, self._run, self._logs)
        write_json(directory_of(self._run, result.cell).verdict, verdict.to_json())
        self._done(job, result, Outcome(wall_s=0.0, verdict=verdict, costs={}))

    def _ask(self) -> None:
        states = self._engine.states(list(self._jobs))
        for job, state in states.items():
            result, before = self._jobs[job], self._told.get(job)
            if state.phase == "running" and result.state != "running":
                result.state = "running"
                self._state.progress.cell_started(result.cell.id)
            if state.trouble and (before is None or state.trouble != before.trouble):
                self._state.progress.note(f"{result.cell.id}: {state.trouble}")
            if state.phase == "ended":
                self._ended.setdefault(job, time.monotonic())
            elif before is not None and before.phase == "ended":
                self._ended.pop(job, None)  # it was only out of sight
        told, self._told = _reasons(self._told.values()), states
        reasons = _reasons(states.values())
        if reasons and set(reasons) != set(told):
            self._state.progress.note(_sentence(reasons))

    def _cancel(self) -> None:
        left = [job for job in self._jobs if job not in self._ended]
        self._engine.cancel(left)
        for job in left:
            _disown(self._run, self._jobs[job].cell)
        if left:
            self._state.progress.note(f"cancelled {', '.join(_in_short(left))}")


def _reasons(states: Iterable[JobState]) -> Counter[tuple[Phase, str]]:
    """Reasons for which jobs wait, with counts; the scheduler's own words where it does not answer."""
    # Before it was first thought about, a job has the reason None.
    told = ((s.phase, s.words) for s in states if s.words not in ("", "None"))
    return Counter(reason for reason in told if reason[0] in ("pending", "untold"))


def _sentence(reasons: Counter[tuple[Phase, str]]) -> str:
    """`3 jobs wait (Resources)`."""
    return ", ".join(
        f"{count} {'jobs wait' if count > 1 else 'job waits'} ({why})"
        if phase == "pending"
        else f"the scheduler does not answer: {why}"
        for (phase, why), count in reasons.items()
    )


def _in_short(ids: Sequence[str]) -> list[str]:
    """Arrays instead of their members."""
    return list(dict.fromkeys(number.partition("_")[0] for number in ids))
