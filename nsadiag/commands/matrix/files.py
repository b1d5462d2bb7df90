"""matrix.json and matrix.csv: what all cells came to, replaced while the matrix runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsadiag.commands import output
from nsadiag.commands.matrix.cells import CellResult
from nsadiag.commands.matrix.claims import conclusions
from nsadiag.commands.matrix.parity import compare_cells
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, write_json, write_private
from nsadiag.evidence.secrets.masking import mask_line, mask_text
from nsadiag.reports.cleaners.data import csv_text
from nsadiag.spec import Matrix


def write_matrix(
    run: RunDir,
    matrix: Matrix,
    results: list[CellResult],
    wall_s: float,
    *,
    scaling: Mapping[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
) -> None:
    """matrix.json and matrix.csv, replaced while the matrix runs: a killed one leaves what it had.

    What all cells come to together is worked out once, when the matrix ends. `machine` is the one they ran on, this
    one if none is given.
    """
    parity = compare_cells(run, matrix, results, whole=scaling is not None)
    done = [r for r in results if r.verdict is not None]
    axes: list[dict[str, Any]] = [
        {"name": name, "values": axis.labels(), "base": axis.base_label()}
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
        "machine": machine or output.machine(),
    }
    if scaling is not None:
        document |= conclusions(run, matrix, [r.cell for r in results], document)
        document |= {"scaling": scaling} if scaling else {}
    write_json(run.path / "matrix.json", document)
    _write_csv(run.path / "matrix.csv", results)


def _write_csv(path: Path, results: list[CellResult]) -> None:
    write_private(path, mask_text(csv_text([_row(r) for r in results])).encode())


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
        "beside": result.beside,
        "predicted_run_s": result.predicted.get("run_s", {}).get("value"),
        **result.costs,
    }
