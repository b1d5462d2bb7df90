"""`nsadiag analyze` on a matrix: each cell is judged again by the evidence it left, and so is what they come to together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands.matrix.cells import CellResult, restored
from nsadiag.commands.matrix.files import write_matrix
from nsadiag.commands.matrix.forecast import Forecast
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.reports.formats.registry import write_reports
from nsadiag.spec import Cell, Matrix


def rejudge(path: Path) -> bool:
    """Rewrites verdicts, matrix.json, matrix.csv and the reports; returns whether all cells are healthy.

    The evidence, what cells cost and the machine that they ran on stay as they were. Raises UsageError where the
    spec in run.json is not one that this version understands.
    """
    run = RunDir(path=path)
    before = read_json(path / "matrix.json", {})
    matrix = _spec(run)
    forecast = Forecast(matrix)
    results = [_judged(run, _cell(matrix, told), told, forecast) for told in before.get("cells", ())]
    wall_s = float(before.get("totals", {}).get("wall_s", 0.0))
    write_matrix(
        run, matrix, results, wall_s, scaling=forecast.summary() or {}, machine=before.get("machine")
    )
    write_reports(path)
    return all(r.verdict is not None and r.verdict.outcome == "healthy" for r in _that_ran(results))


def _spec(run: RunDir) -> Matrix:
    try:
        return Matrix.model_validate(read_json(run.run, {}).get("spec"))
    except ValueError as error:
        raise UsageError(
            f"{run.run} does not hold the spec of a matrix that this version of nsadiag knows",
            "judge its cells one by one: nsadiag analyze " + str(run.path / "cells" / "CELL"),
        ) from error


def _cell(matrix: Matrix, told: dict[str, Any]) -> Cell:
    factors = dict(told["factors"])
    number = factors.pop("repeat", None)
    cell = matrix.cell(factors)
    return cell if number is None else cell.repeated(int(number))


def _judged(run: RunDir, cell: Cell, told: dict[str, Any], forecast: Forecast) -> CellResult:
    if told.get("state") != "done":
        return CellResult(cell=cell, state=told.get("state", "pending"))
    directory = RunDir(path=run.path / "cells" / cell.id)
    # What parity said of it is a conclusion, and drawn again.
    directory.parity.unlink(missing_ok=True)
    judge_directory(directory.path)
    result = restored(run, cell)
    forecast.learn(result, read_json(directory.watch, {}).get("stopped"))
    return result


def _that_ran(results: list[CellResult]) -> list[CellResult]:
    return [result for result in results if result.state == "done"]
