"""`nsadiag matrix`: runs the cells of a spec from cheap to dear, side by side where there is room, and reports on the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsadiag.agent.job.entry_script import check_words
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.commands import output
from nsadiag.commands.matrix.cells import (
    CellResult,
    Outcome,
    announce,
    directory_of,
    note_done,
    restored,
    run_cell,
)
from nsadiag.commands.matrix.claims import timed_cells
from nsadiag.commands.matrix.files import write_matrix
from nsadiag.commands.matrix.forecast import Forecast, expected_quiet_s
from nsadiag.commands.matrix.running import Running
from nsadiag.commands.matrix.slots import Slots, cheap_to_dear
from nsadiag.engines.local import WarmLauncher
from nsadiag.engines.pool import LauncherPool
from nsadiag.engines.room import Need, this_machine
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, UsageError
from nsadiag.evidence.layout import (
    RunDir,
    make_private_dir,
    read_json,
    this_node,
)
from nsadiag.evidence.secrets.masking import hide, mask_line, mask_variables
from nsadiag.spec import Cell, Matrix

if TYPE_CHECKING:
    from nsadiag.reports.terminal.live import MatrixProgress

# Writing matrix.json may take so much of the time since it was last written: it grows with the number of cells.
SHARE_FOR_WRITING = 0.1


@dataclass(frozen=True, kw_only=True)
class MatrixRequest:
    """A parsed `nsadiag matrix` line."""

    matrix: Matrix
    cells: list[Cell]
    every_cell: list[Cell]  # the cells are those of it that -k selects
    source: str  # the spec as the user named it
    out: Path | None = None
    resume: bool = False
    force: bool = False
    slots: int | None = None  # cells at once; None: as many as there is room for
    engine: str = "local"
    # What runs the cells, where that is not this machine, and what a cell is found as when it is resumed.
    runner: Callable[[MatrixState], None] | None = None
    restore: Callable[[RunDir, Cell], CellResult] = restored


@dataclass(frozen=True, kw_only=True)
class MatrixResult:
    """The result of a matrix."""

    directory: Path
    cells: list[CellResult]
    exit_code: int


def run_matrix(request: MatrixRequest, progress: MatrixProgress) -> MatrixResult:
    """Runs every cell that is not done; whatever happens to one cell, the next is run."""
    for argv in {tuple(cell.argv[:2]): cell.argv for cell in request.cells}.values():
        check_words(argv)
    for cell in request.every_cell:
        hide(cell.env, cell.command())
    output.need("torch", "a matrix")
    output.need("numpy", "a matrix")
    run = _directory(request)
    running = Running(run)
    left_over = running.take()
    try:
        with progress:
            if left_over:
                progress.note(f"ended {left_over} processes that a killed nsadiag had left running")
            return _run(run, request, running, progress)
    finally:
        running.release()


def _run(run: RunDir, request: MatrixRequest, running: Running, progress: MatrixProgress) -> MatrixResult:
    before = read_json(run.run, {}) if request.resume else {}
    about: dict[str, Any] = {
        "kind": "matrix",
        "name": request.matrix.name,
        "command": ["nsadiag", "matrix", request.source],
        "started_at": before.get("started_at") or output.now(),
        "spec": _shown(request.matrix.model_dump(mode="json")),
    }
    output.write_run(run, **about)
    results = _results(run, request)
    state = MatrixState(run=run, request=request, results=results, progress=progress)
    state.launcher_starts = running.launcher_starts
    interrupted = False
    try:
        request.runner(state) if request.runner else _run_here(state)
    except KeyboardInterrupt:
        interrupted = True
    state.write(scaling=state.forecast.summary())
    output.write_run(run, **about, ended_at=output.now())
    from nsadiag.reports.formats.registry import write_reports

    write_reports(run.path)
    return MatrixResult(
        directory=run.path, cells=results, exit_code=_exit_code(results, interrupted=interrupted)
    )


def _run_here(state: MatrixState) -> None:
    pool = launchers(state)
    try:
        state.run(pool)
    finally:
        pool.close()


def launchers(state: MatrixState) -> LauncherPool:
    """None is started yet; to be closed."""
    log = make_private_dir(state.directory.node(this_node())) / "launcher.log"
    return LauncherPool(log, preload=tuple(state.matrix.preload), before_start=state.launcher_starts)


class MatrixState:
    """A matrix that is being run: results in the order of the spec, whichever ends first."""

    def __init__(
        self, *, run: RunDir, request: MatrixRequest, results: list[CellResult], progress: MatrixProgress
    ) -> None:
        self.directory, self.request, self.results, self.progress = run, request, results, progress
        self.matrix = request.matrix
        self.forecast = Forecast(request.matrix)
        self.machine = this_machine()
        # Told the mark of each launcher on this machine before it exists (commands.running).
        self.launcher_starts: Callable[[str], None] = lambda _: None
        self._timed = timed_cells(request.matrix, [result.cell for result in results])
        self._written_at, self._write_took_s = 0.0, 0.0
        spent_s = read_json(run.path / "matrix.json", {}).get("totals", {}).get("wall_s", 0.0)
        self._started = time.monotonic() - (float(spent_s) if request.resume else 0.0)

    def begin(self) -> list[CellResult]:
        """The cells that are not done, in the order in which they are to be run."""
        self.progress.start(self.matrix.name, [r.cell.id for r in self.results])
        for result in self.results:
            if result.state == "done":
                self._learn(result)
                self.progress.cell_finished(result.cell.id, result.verdict, result.wall_s or 0.0)
        return cheap_to_dear([r for r in self.results if r.state == "pending"], self.forecast.effort)

    def run(self, pool: LauncherPool) -> None:
        """Every cell that is not done."""
        for result in self.results:
            if result.state != "done" and result.cell.gpus > len(self.machine.gpus):
                result.state = "skipped"
        waiting = self.begin()
        slots = Slots(
            pool=pool,
            machine=self.machine,
            most=self.request.slots,
            need=self._need,
            before=self.before,
            run_one=self._run_one,
            after=self.after,
            seconds=self.forecast.seconds,
            rank_mib=self.forecast.rank_mib,
        )
        slots.run(waiting)

    def _need(self, result: CellResult) -> Need:
        cell = result.cell
        uses_gpus = self.machine.gpus and cell.env.get("CUDA_VISIBLE_DEVICES") != ""
        return Need(
            ranks=cell.world_size,
            gpus=max(cell.gpus, min(cell.world_size, len(self.machine.gpus))) if uses_gpus else 0,
            alone=self.matrix.alone
            or cell.id in self._timed
            or bool(uses_gpus and "CUDA_VISIBLE_DEVICES" in cell.env),
        )

    def before(self, result: CellResult, beside: bool) -> None:
        """It is about to be started; whether others run."""
        result.state, result.predicted = "running", self.forecast.predict(result, beside=beside)
        announce(self.directory, result)
        self.progress.cell_started(result.cell.id)

    def options(self, result: CellResult) -> WatchOptions:
        """The patience to have with the cell."""
        return WatchOptions(
            stall_after_s=self.matrix.stall_after_s,
            expected_quiet_s=expected_quiet_s(result.predicted),
            timeout_s=result.cell.timeout_s,
        )

    def _run_one(self, result: CellResult, launcher: WarmLauncher) -> Outcome:
        return run_cell(self.directory, self.matrix, result.cell, launcher, self.options(result))

    def after(self, result: CellResult, outcome: Outcome, beside: float) -> None:
        """It is done; the share of its time in which others ran."""
        note_done(self.directory, result, outcome, beside=beside)
        self._learn(result)
        if time.monotonic() - self._written_at > self._write_took_s / SHARE_FOR_WRITING:
            self.write()
        self.progress.cell_finished(result.cell.id, result.verdict, result.wall_s or 0.0)
        self.progress.foretell(
            self.forecast.all_seconds(r for r in self.results if r.state in ("pending", "running"))
        )

    def _learn(self, result: CellResult) -> None:
        watch = read_json(directory_of(self.directory, result.cell).watch, {})
        self.forecast.learn(result, watch.get("stopped"))

    def write(self, *, scaling: Mapping[str, Any] | None = None) -> None:
        """matrix.json and matrix.csv as of now; what is done has been noted in the cells' own directories before."""
        began = time.monotonic()
        for result in self.results:
            # Cells that an interrupt ended are to be run again.
            if scaling is not None and result.state == "running":
                result.state = "pending"
        write_matrix(
            self.directory, self.matrix, self.results, time.monotonic() - self._started, scaling=scaling
        )
        self._written_at = time.monotonic()
        self._write_took_s = self._written_at - began


def _results(run: RunDir, request: MatrixRequest) -> list[CellResult]:
    """The cells to run; on resuming also the finished ones, whether or not selected this time."""
    if not request.resume:
        return [CellResult(cell=cell) for cell in request.cells]
    chosen = {cell.id for cell in request.cells}
    found = [request.restore(run, cell) for cell in request.every_cell]
    return [result for result in found if result.state == "done" or result.cell.id in chosen]


def _exit_code(results: list[CellResult], *, interrupted: bool) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    run = [r for r in results if r.state != "skipped"]
    healthy = all(r.verdict is not None and r.verdict.outcome == "healthy" for r in run)
    return EXIT_HEALTHY if healthy else EXIT_FINDING


def _directory(request: MatrixRequest) -> RunDir:
    if not request.resume:
        if request.force and request.out is not None and (request.out / "running.jsonl").exists():
            # What a killed one left must not write on into the directory's successor.
            earlier = Running(RunDir(path=request.out))
            earlier.take()
            earlier.release()
        if not request.force and request.out is not None and (request.out / "matrix.json").exists():
            raise UsageError(
                f"{request.out} holds a matrix already",
                "--resume keeps its finished cells and continues with the rest; --force deletes them; or choose another --out",
            )
        return output.prepare(request.out, request.matrix.name, force=request.force)
    if request.out is not None and _has_nothing_yet(request.out):
        return RunDir(path=request.out)
    if request.out is None or not (request.out / "run.json").exists():
        raise UsageError(
            "--resume needs the directory of the matrix to go on with",
            "nsadiag matrix SPEC --out DIR --resume",
        )
    before = read_json(request.out / "run.json", {}).get("spec")
    if before != _shown(request.matrix.model_dump(mode="json")):
        raise UsageError(
            f"{request.out} holds another matrix, or another version of this one",
            "start over with --force, or in another --out",
        )
    return RunDir(path=request.out)


def _has_nothing_yet(path: Path) -> bool:
    """Whether an earlier nsadiag was killed before it could write even run.json; temporary files have a dot."""
    return path.is_dir() and all(
        p.name.startswith(".run.json.") or p.name == "running.jsonl" for p in path.iterdir()
    )


def _shown(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as it may be written down: secrets masked in command lines and variables, however deep they lie."""
    shown: dict[str, Any] = {}
    for key, value in spec.items():
        if key in ("command", "args") and isinstance(value, str):
            shown[key] = mask_line(value)
        elif key == "env" and isinstance(value, dict):
            shown[key] = mask_variables(value)
        else:
            shown[key] = _shown(value) if isinstance(value, dict) else value
    return shown
