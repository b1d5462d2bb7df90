"""Conclusions from all cells of a matrix: its claims, settled."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.spec import Cell, Matrix


def conclusions(
    run: RunDir, matrix: Matrix, cells: Sequence[Cell], document: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of matrix.json besides its cells; empty where the spec claims nothing and nothing fails."""
    from nsadiag.analysis.matrix.attribution_report import attributions
    from nsadiag.analysis.matrix.claims import settle

    seen = {**document, "cells": [_with_its_end(run, cell) for cell in document["cells"]]}
    found = [
        {**attribution, "command": _command(run, matrix, cells, attribution["propose"])}
        for attribution in attributions(seen, matrix.space().allows)
    ]
    settled = settle(claims_of(matrix, cells), seen)
    return ({"hypotheses": settled} if settled else {}) | ({"attribution": found} if found else {})


def _command(
    run: RunDir, matrix: Matrix, cells: Sequence[Cell], wanted: Sequence[Mapping[str, str]]
) -> str | None:
    """The line that runs these cells as well; None where there are none, or `-k` could not name them."""
    names = [_named(matrix, factors) for factors in wanted]
    if not names or None in names:
        return None
    spec = [*read_json(run.run, {}).get("command", ()), ""][2]
    repeats = max(int(cell.factors.get("repeat", 1)) for cell in cells)
    again = "" if repeats == matrix.repeat else f" --repeat {repeats}"
    line = ["nsadiag", "matrix", spec, "--strategy", "all", "--out", str(run.path), "--resume"]
    return f"{shlex.join(line)}{again} -k {shlex.quote(' or '.join(map(str, names)))}"


def _named(matrix: Matrix, factors: Mapping[str, str]) -> str | None:
    """The words by which `-k` selects this cell with all its repeats."""
    cell = matrix.cell(dict(factors))
    settings = cell.settings().values()
    if any(set(setting) & set("() \t\n") for setting in settings):
        return None
    if "," in cell.name or len(settings) == 1:
        return cell.name
    return f"({' and '.join(settings)})"


def _with_its_end(run: RunDir, cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell, and whether its time ran out before it was through."""
    watch = read_json(RunDir(path=run.path / "cells" / cell["id"]).watch, {})
    return {**cell, "stopped": watch.get("stopped") if isinstance(watch, dict) else None}


def claims_of(matrix: Matrix, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Each hypothesis as analysis reads it."""
    claims = []
    for hypothesis, trials in zip(matrix.hypotheses, matrix.trials(list(cells)), strict=True):
        claim: dict[str, Any] = {"claim": hypothesis.claim, "source": hypothesis.source}
        if hypothesis.not_tested:
            claims.append({**claim, "not_tested": hypothesis.not_tested})
            continue
        claims.append(
            {
                **claim,
                "factor": hypothesis.factor,
                "settings": hypothesis.settings,
                "confirmed_if": hypothesis.confirmed_if,
                "criterion": hypothesis.criterion(),
                "trials": [trial.to_json() for trial in trials],
            }
        )
    return claims


def timed_cells(matrix: Matrix, cells: Sequence[Cell]) -> set[str]:
    """Cells whose times a claim compares: a neighbour would be a second factor."""
    timed = set()
    for hypothesis, trials in zip(matrix.hypotheses, matrix.trials(list(cells)), strict=True):
        metric = "" if hypothesis.not_tested else hypothesis.criterion().get("metric", "")
        if metric.endswith(("_s", "_s_median", "_s_mean")):
            timed |= {name for trial in trials for names in trial.cells.values() for name in names}
    return timed
