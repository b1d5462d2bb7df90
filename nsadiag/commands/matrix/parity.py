"""Cells that should compute the same are held against their control as soon as both are done, and judged again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsadiag.commands.matrix.cells import CellResult
from nsadiag.commands.matrix.probes import compares
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.spec import Matrix


def compare_cells(
    run: RunDir, matrix: Matrix, results: list[CellResult], *, whole: bool
) -> list[Mapping[str, Any]]:
    """Rows for matrix.json: each done cell against its control, whose verdict follows; at the end what claims ask for."""
    rows = _against_controls(run, matrix, results) if matrix.parity else []
    return rows + (_claimed(run, matrix, results, rows) if whole else [])


def _against_controls(run: RunDir, matrix: Matrix, results: list[CellResult]) -> list[Mapping[str, Any]]:
    assert matrix.parity is not None
    by_factors = {tuple(sorted(r.cell.factors.items())): r for r in results}
    allows = matrix.space().allows
    rows = []
    for result in results:
        wanted = matrix.parity.of(result.cell.factors)
        named = {name: value for name, value in wanted.items() if name in matrix.axes}
        # A setting with a command of its own stands alone, and has no control.
        if result.state != "done" or wanted == result.cell.factors or not allows(named):
            continue
        rows.append(_row(run, result, by_factors.get(tuple(sorted(wanted.items()))), named))
    return rows


def _row(
    run: RunDir, result: CellResult, control: CellResult | None, wanted: dict[str, str]
) -> Mapping[str, Any]:
    from nsadiag.analysis.matrix.parity import row_of

    told = read_json(RunDir(path=_folder(run, result)).parity)
    if isinstance(told, dict):
        return row_of(told)
    if control is None or control.state != "done":
        name = control.cell.id if control else ",".join(f"{k}={v}" for k, v in wanted.items())
        why = "its control has not been run"
        return row_of({"cell": result.cell.id, "control": name, "judgement": "not_comparable", "why": why})
    document = _compared(run, result, control)
    write_json(RunDir(path=_folder(run, result)).parity, document)
    if document["judgement"] != "same":
        _judge_again(run, result)
    return row_of(document)


def _judge_again(run: RunDir, result: CellResult) -> None:
    """parity.json is evidence now; how long the first verdict took stays as it was."""
    from nsadiag.analysis.verdict import judge_directory

    if result.verdict is not None:
        folder = _folder(run, result)
        result.verdict = dataclasses.replace(judge_directory(folder), times=result.verdict.times)
        write_json(RunDir(path=folder).verdict, result.verdict.to_json())


def _claimed(
    run: RunDir, matrix: Matrix, results: list[CellResult], rows: list[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Pairs of which a claim says that they differ: for the claim alone, nobody said that they should be equal."""
    from nsadiag.analysis.matrix.parity import row_of

    done = {result.cell.id: result for result in results if result.state == "done"}
    known = {(row["cell"], row["control"]) for row in rows}
    found = []
    trials = matrix.trials([result.cell for result in results])
    for hypothesis, tried in zip(matrix.hypotheses, trials, strict=True):
        for trial in tried if compares(hypothesis) else ():
            first, *others = (trial.cells[setting] for setting in hypothesis.settings)
            for control, cell in (pair for other in others for pair in zip(first, other, strict=False)):
                if control in done and cell in done and (cell, control) not in known:
                    known.add((cell, control))
                    found.append(row_of(_compared(run, done[cell], done[control])))
    return found


def _compared(run: RunDir, result: CellResult, control: CellResult) -> Mapping[str, Any]:
    from nsadiag.analysis.ingest.first_steps.record import read_record
    from nsadiag.analysis.matrix.parity import compare, document_of

    ours, theirs = read_record(_folder(run, result)), read_record(_folder(run, control))
    factors = [
        f"{name}={value} instead of {control.cell.factors[name]}"
        for name, value in result.cell.factors.items()
        if control.cell.factors[name] != value
    ]
    return document_of(
        compare(ours, theirs),
        cell=result.cell.id,
        control=control.cell.id,
        factors=", ".join(factors),
        source=ours.source,
    )


def _folder(run: RunDir, result: CellResult) -> Path:
    return Path(run.path) / "cells" / result.cell.id
