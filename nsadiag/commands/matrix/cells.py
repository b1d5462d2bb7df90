"""One cell of a matrix: run it on a warm launcher, judge it, find it again on disk."""

from __future__ import annotations

import functools
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

from nsadiag.agent.watching.state import WatchOptions
from nsadiag.commands.matrix.probes import probes_of
from nsadiag.engines.local import WarmLauncher, run_warm
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.masking import mask_command, mask_variables
from nsadiag.spec import Cell, Matrix


@dataclass(kw_only=True)
class CellResult:
    """One cell as matrix.json shows it."""

    cell: Cell
    state: str = "pending"
    wall_s: float | None = None
    verdict: Verdict | None = None
    costs: dict[str, float | int | None] = field(default_factory=dict)
    predicted: dict[str, Any] = field(default_factory=dict)  # by measure, before it was run
    beside: float = 0.0  # share of its time in which other cells ran too
    gpus: tuple[str, ...] = ()

    @functools.cached_property
    def _command(self) -> list[str]:
        """Masked once: matrix.json shows every cell each time that one ends."""
        return mask_command(self.cell.command())

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.cell.id,
            "factors": self.cell.factors,
            "world_size": self.cell.world_size,
            "state": self.state,
            "wall_s": self.wall_s,
            "launch": "warm",
            "command": self._command,
            "costs": self.costs,
            "predicted": self.predicted,
            "beside": self.beside,
            "verdict": self.verdict.to_json() if self.verdict else None,
        }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of running a cell."""

    wall_s: float
    verdict: Verdict
    costs: dict[str, float | int | None]


def directory_of(run: RunDir, cell: Cell) -> RunDir:
    return RunDir(path=run.path / "cells" / cell.id)


def announce(run: RunDir, result: CellResult) -> None:
    """cell.json, before the cell is started."""
    directory = directory_of(run, result.cell)
    make_private_dir(directory.path)
    cell = result.cell
    about = {
        "id": cell.id,
        "factors": cell.factors,
        "command": mask_command(cell.command()),
        "world_size": cell.world_size,
        "env": mask_variables(cell.env),
        "gpus": list(result.gpus),
        "predicted": result.predicted,
    }
    write_json(directory.cell, about)


def run_cell(
    run: RunDir, matrix: Matrix, cell: Cell, launcher: WarmLauncher, options: WatchOptions
) -> Outcome:
    """Runs it to its end, and judges it. Raises KeyboardInterrupt where that came first: then it is to be run again."""
    directory, started = directory_of(run, cell), time.monotonic()
    run_warm(launcher, cell.argv, directory, options, world_size=cell.world_size, probes=probes_of(matrix))
    return judged_now(directory, started)


def judged_now(directory: RunDir, started: float) -> Outcome:
    """The outcome of a cell that has just ended; `started` is its start on the monotonic clock."""
    wall_s = round(time.monotonic() - started, 3)
    verdict, costs = _judged(directory, live=True)
    return Outcome(wall_s=wall_s, verdict=verdict, costs=costs)


def note_done(run: RunDir, result: CellResult, outcome: Outcome, *, beside: float) -> None:
    """The result is complete, and cell.json says what it cost."""
    result.wall_s, result.verdict, result.costs = outcome.wall_s, outcome.verdict, outcome.costs
    result.beside, result.state = round(beside, 3), "done"
    write_json(directory_of(run, result.cell).cell, result.to_json() | {"verdict": None})


def restored(run: RunDir, cell: Cell) -> CellResult:
    """The cell as an earlier nsadiag left it: what is done stays, what only lacks its verdict is judged.

    A cell that had not come to its end, or in which a node was lost, is removed, to be started over.
    """
    if _has_lost_a_node(directory_of(run, cell)):
        shutil.rmtree(directory_of(run, cell).path, ignore_errors=True)
        return CellResult(cell=cell)
    if (done := from_disk(run, cell)) is not None:
        return done
    directory = directory_of(run, cell)
    document = read_json(directory.verdict)
    if document is None and not _has_ended(directory):
        shutil.rmtree(directory.path, ignore_errors=True)
        return CellResult(cell=cell)
    # It was killed between the end of the job and the last line about it.
    result = _as_announced(cell, read_json(directory.cell, {}))
    verdict, costs = _judged(directory, live=False, known=document)
    wall_s = round(float(read_json(directory.watch, {}).get("ended_s", 0.0)), 3)
    note_done(run, result, Outcome(wall_s=wall_s, verdict=verdict, costs=costs), beside=result.beside)
    return result


def from_disk(run: RunDir, cell: Cell) -> CellResult | None:
    """The cell as whoever ran it wrote it down when it was done; None where it is not."""
    directory = directory_of(run, cell)
    document, about = read_json(directory.verdict), read_json(directory.cell, {})
    if document is None or about.get("wall_s") is None:
        return None
    result = _as_announced(cell, about)
    result.verdict, result.state = Verdict.from_json(document), "done"
    return result


def _as_announced(cell: Cell, about: dict[str, Any]) -> CellResult:
    return CellResult(
        cell=cell,
        wall_s=about.get("wall_s"),
        costs=about.get("costs") or {},
        predicted=about.get("predicted") or {},
        beside=about.get("beside") or 0.0,
        gpus=tuple(about.get("gpus") or ()),
    )


def _has_lost_a_node(directory: RunDir) -> bool:
    """Then its verdict says something of a machine, and nothing of the cell."""
    watch = read_json(directory.watch)
    nodes = watch.get("nodes") if isinstance(watch, dict) else None
    return any(node.get("lost_s") is not None for node in nodes or [])


def _has_ended(directory: RunDir) -> bool:
    """Whether the watch had seen the job's end, and nobody had interrupted it; it also writes once in between."""
    watch = read_json(directory.watch)
    if not isinstance(watch, dict) or watch.get("stopped") == "interrupt":
        return False
    return watch.get("stopped") is None or watch.get("ending_s") is not None


def _judged(
    directory: RunDir, *, live: bool, known: dict[str, Any] | None = None
) -> tuple[Verdict, dict[str, float | int | None]]:
    """Verdict and costs, by the evidence; a verdict that is known already stays as it is."""
    from nsadiag.analysis.load import load_cell
    from nsadiag.analysis.matrix.costs import costs
    from nsadiag.analysis.verdict import judge_directory

    # Costs first: verdict.json is the mark of a cell that is done.
    measured = costs(load_cell(directory.path))
    verdict = Verdict.from_json(known) if known else judge_directory(directory.path, live=live)
    return verdict, measured
