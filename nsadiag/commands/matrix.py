"""`nsadiag matrix`: runs the cells of a spec one after the other and reports on the whole."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsadiag.agent import interrupts
from nsadiag.agent.launch import check_script
from nsadiag.agent.watch import WatchOptions
from nsadiag.commands import output
from nsadiag.commands.claims import conclusions
from nsadiag.commands.parity import compare_cells, probes_of
from nsadiag.engines.local import WarmLauncher, run_warm
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, UsageError
from nsadiag.evidence.layout import (
    SCHEMA_VERSION,
    RunDir,
    make_private_dir,
    read_json,
    write_json,
    write_private,
)
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets import hide, mask_command, mask_line, mask_text, mask_variables
from nsadiag.spec import Cell, Matrix

if TYPE_CHECKING:
    from nsadiag.reports.live import MatrixProgress


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


@dataclass(kw_only=True)
class CellResult:
    """One cell as matrix.json shows it."""

    cell: Cell
    state: str = "pending"
    wall_s: float | None = None
    verdict: Verdict | None = None
    costs: dict[str, float | int | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.cell.id,
            "factors": self.cell.factors,
            "world_size": self.cell.world_size,
            "state": self.state,
            "wall_s": self.wall_s,
            "launch": "warm",
            "command": mask_command(self.cell.command()),
            "costs": self.costs,
            "verdict": self.verdict.to_json() if self.verdict else None,
        }


@dataclass(frozen=True, kw_only=True)
class MatrixResult:
    """What came of it."""

    directory: Path
    cells: list[CellResult]
    exit_code: int


def run_matrix(request: MatrixRequest, progress: MatrixProgress) -> MatrixResult:
    """Runs every cell that is not done; whatever happens to one cell, the next is run."""
    check_script(request.cells[0].argv)
    for cell in request.every_cell:
        hide(cell.env, cell.command())
    run = _directory(request)
    results = _results(run, request)
    before = read_json(run.run, {}) if request.resume else {}
    spent_s = (
        float(read_json(run.path / "matrix.json", {}).get("totals", {}).get("wall_s", 0.0))
        if request.resume
        else 0.0
    )
    started_at, started = before.get("started_at") or output.now(), time.monotonic() - spent_s
    about: dict[str, Any] = {
        "kind": "matrix",
        "name": request.matrix.name,
        "command": ["nsadiag", "matrix", request.source],
        "started_at": started_at,
        "spec": _shown(request.matrix.model_dump(mode="json")),
    }
    output.write_run(run, **about)
    interrupted = False
    with progress, _launchers(run, request.matrix) as launchers:
        progress.start(request.matrix.name, [r.cell.id for r in results])
        for result in results:
            if result.state == "done":
                progress.cell_finished(result.cell.id, result.verdict, result.wall_s or 0.0)
        try:
            for result in results:
                if result.state != "done":
                    _run_cell(run, request.matrix, result, launchers, progress)
                    _write(run, request.matrix, results, time.monotonic() - started)
        except KeyboardInterrupt:
            interrupted = True
    _write(run, request.matrix, results, time.monotonic() - started, whole=True)
    output.write_run(run, **about, ended_at=output.now())
    from nsadiag.reports import write_reports

    write_reports(run.path)
    return MatrixResult(
        directory=run.path, cells=results, exit_code=_exit_code(results, interrupted=interrupted)
    )


def _results(run: RunDir, request: MatrixRequest) -> list[CellResult]:
    """What is to be run; on resuming also what is done already, chosen this time or not."""
    if not request.resume:
        return [CellResult(cell=cell) for cell in request.cells]
    chosen = {cell.id for cell in request.cells}
    restored = [_restored(run, cell) for cell in request.every_cell]
    return [result for result in restored if result.state == "done" or result.cell.id in chosen]


def _exit_code(results: list[CellResult], *, interrupted: bool) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    healthy = all(r.verdict is not None and r.verdict.outcome == "healthy" for r in results)
    return EXIT_HEALTHY if healthy else EXIT_FINDING


def _directory(request: MatrixRequest) -> RunDir:
    if not request.resume:
        return output.prepare(request.out, request.matrix.name, force=request.force)
    if request.out is None or not (request.out / "run.json").exists():
        raise UsageError(
            "--resume needs the directory of the matrix to go on with",
            "nsadiag matrix SPEC --out DIR --resume",
        )
    before = read_json(request.out / "run.json", {}).get("spec")
    if before != _shown(request.matrix.model_dump(mode="json")):
        raise UsageError(
            f"{request.out} holds another matrix, or another version of this one",
            "start anew with --force, or in another --out",
        )
    return RunDir(path=request.out)


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


def _restored(run: RunDir, cell: Cell) -> CellResult:
    """A cell whose verdict is on disk is not run again; a half-done one is started over."""
    directory = RunDir(path=run.path / "cells" / cell.id)
    document, about = read_json(directory.verdict), read_json(directory.cell, {})
    if document is None:
        shutil.rmtree(directory.path, ignore_errors=True)
        return CellResult(cell=cell)
    return CellResult(
        cell=cell,
        state="done",
        wall_s=about.get("wall_s"),
        verdict=Verdict.from_json(document),
        costs=about.get("costs", {}),
    )


class _Launchers:
    """One warm launcher for each set of environment variables: ranks are born with what it was started with."""

    def __init__(self, run: RunDir, preload: tuple[str, ...]) -> None:
        self._log = make_private_dir(run.node(os.uname().nodename)) / "launcher.log"
        self._preload = preload
        self._current: WarmLauncher | None = None

    def get(self, env: dict[str, str]) -> WarmLauncher:
        """The one at hand if it fits; else it is replaced, so that never more than one takes up memory."""
        if self._current is not None and self._current.env != env:
            self.close()
        if self._current is None:
            # An interrupt between its start and this assignment would leave nobody to end it.
            with interrupts.held_off():
                self._current = WarmLauncher(self._log, preload=self._preload, env=env)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None


@contextmanager
def _launchers(run: RunDir, matrix: Matrix) -> Iterator[_Launchers]:
    launchers = _Launchers(run, tuple(matrix.preload))
    try:
        yield launchers
    finally:
        with interrupts.held_off():
            launchers.close()


def _run_cell(
    run: RunDir, matrix: Matrix, result: CellResult, launchers: _Launchers, progress: MatrixProgress
) -> None:
    from nsadiag.analysis.load import load_cell
    from nsadiag.analysis.scaling import costs
    from nsadiag.analysis.verdict import judge_directory

    cell = result.cell
    directory = RunDir(path=make_private_dir(run.path / "cells" / cell.id))
    write_json(
        directory.cell,
        {
            "id": cell.id,
            "factors": cell.factors,
            "command": mask_command(cell.command()),
            "world_size": cell.world_size,
            "env": mask_variables(cell.env),
        },
    )
    progress.cell_started(cell.id)
    result.state, started = "running", time.monotonic()
    options = WatchOptions(stall_after_s=matrix.stall_after_s, timeout_s=cell.timeout_s)
    run_warm(
        launchers.get(cell.env),
        cell.argv,
        directory,
        options,
        world_size=cell.world_size,
        probes=probes_of(matrix),
    )
    result.wall_s = round(time.monotonic() - started, 3)
    result.verdict = judge_directory(directory.path, live=True)
    result.costs = costs(load_cell(directory.path))
    result.state = "done"
    write_json(directory.cell, result.to_json() | {"verdict": None})
    progress.cell_finished(cell.id, result.verdict, result.wall_s)


def _write(
    run: RunDir, matrix: Matrix, results: list[CellResult], wall_s: float, *, whole: bool = False
) -> None:
    """matrix.json and matrix.csv, replaced after every cell: a killed matrix leaves what it had.

    What all cells come to together is worked out once, when the matrix ends.
    """
    parity = compare_cells(run, matrix, results, whole=whole)
    done = [r for r in results if r.verdict is not None]
    axes: list[dict[str, Any]] = [
        {"name": name, "values": list(axis.settings()), "base": axis.base_label()}
        for name, axis in matrix.axes.items()
    ]
    repeats = list(dict.fromkeys(r.cell.factors["repeat"] for r in results if "repeat" in r.cell.factors))
    if repeats:
        axes.append({"name": "repeat", "values": repeats})
    healthy = sum(r.verdict is not None and r.verdict.outcome == "healthy" for r in done)
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": matrix.name,
        "command": mask_line(matrix.command),
        "axes": axes,
        "cells": [r.to_json() for r in results],
        "parity": parity,
        "totals": {
            "cells": len(results),
            "done": len(done),
            "healthy": healthy,
            "findings": len(done) - healthy,
            "wall_s": round(wall_s, 2),
        },
        "machine": output.machine(),
    }
    if whole:
        document |= conclusions(run, matrix, [r.cell for r in results], document)
    write_json(run.path / "matrix.json", document)
    _write_csv(run.path / "matrix.csv", results)


def _write_csv(path: Path, results: list[CellResult]) -> None:
    rows = [_row(r) for r in results]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    write_private(path, mask_text(table.getvalue()).encode())


def _row(result: CellResult) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "cell": result.cell.id,
        **result.cell.factors,
        "world_size": result.cell.world_size,
        "state": result.state,
        "wall_s": result.wall_s,
        "outcome": verdict.outcome if verdict else None,
        "class": verdict.cls if verdict else None,
        "guilty_ranks": " ".join(map(str, verdict.guilty_ranks)) if verdict else None,
        "summary": verdict.summary if verdict else None,
        "signature": verdict.signature if verdict else None,
        **result.costs,
    }
