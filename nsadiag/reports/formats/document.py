"""A report as one JSON document."""

from __future__ import annotations

import dataclasses
from typing import Any

from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.reports.cleaners.data import Json, json_text
from nsadiag.reports.model import CellReport, MatrixReport, Report, RunReport


def render_json(report: Report) -> Json:
    """The document, indented, ending in a newline."""
    document = matrix_document(report) if isinstance(report, MatrixReport) else run_document(report)
    return json_text(document)


def run_document(run: RunReport) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "directory": str(run.directory.resolve()),
        **_provenance(run),
        "exit_code": run.exit_code,
        "world_size": run.world_size,
        "verdict": run.verdict.to_json() if run.verdict else None,
        **({"rehearsal": run.rehearsal.to_json()} if run.rehearsal else {}),
        **({"fix": dataclasses.asdict(run.repair)} if run.repair else {}),
        "ranks": [_without(dataclasses.asdict(rank), "last_words") for rank in run.ranks],
        "gaps": list(run.gaps),
    }


def matrix_document(matrix: MatrixReport) -> dict[str, Any]:
    counts = matrix.counts()
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "matrix",
        **_provenance(matrix.run),
        "name": matrix.name,
        "axes": [dataclasses.asdict(axis) for axis in matrix.axes],
        "cells": [_cell(cell) for cell in matrix.cells],
        "totals": {
            "cells": len(matrix.cells),
            "healthy": counts.get("healthy", 0),
            "findings": sum(len(group.cells) for group in matrix.findings()),
            "wall_s": matrix.wall_s,
        },
        "machine": dict(matrix.machine),
        **matrix.documents,
        "gaps": list(matrix.gaps),
    }


def _cell(cell: CellReport) -> dict[str, Any]:
    return {
        "id": cell.id,
        "factors": dict(cell.factors),
        "world_size": cell.world_size,
        "state": cell.state,
        "wall_s": cell.wall_s,
        "launch": cell.launch,
        "costs": dataclasses.asdict(cell.costs),
        "verdict": cell.verdict.to_json() if cell.verdict else None,
        "gaps": list(cell.run.gaps),
    }


def _provenance(run: RunReport) -> dict[str, Any]:
    return {
        "name": run.name,
        "command": list(run.command),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "duration_s": run.duration_s,
        "host": run.host,
        "versions": dict(run.versions),
        "environment": dict(run.environment),
    }


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
