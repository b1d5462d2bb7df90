"""Lays a matrix out as a table: the last axis across, the others down."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.reports.model import Axis, CellReport, MatrixReport

# More than one cell stands in a slot when a matrix was repeated.
Slot = tuple[CellReport, ...]


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One line: its label on every row axis, and one slot a column (empty where nothing was asked)."""

    labels: tuple[str, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Axes with one value are named once, in `fixed`, instead of on every row."""

    row_axes: tuple[str, ...]
    column_axis: str
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    fixed: tuple[tuple[str, str], ...]


def grid_of(matrix: MatrixReport) -> Grid:
    varied = [axis for axis in matrix.axes if len(axis.values) > 1]
    fixed = tuple((axis.name, axis.values[0]) for axis in matrix.axes if len(axis.values) == 1)
    across = varied[-1] if varied else Axis(name="", values=("",))
    down = varied[:-1]
    slots: dict[tuple[str, ...], dict[str, list[CellReport]]] = {}
    for cell in sorted(matrix.cells, key=lambda cell: _place(cell, down)):
        labels = tuple(cell.factors.get(axis.name, "") for axis in down)
        column = cell.factors.get(across.name, across.values[0])
        slots.setdefault(labels, {}).setdefault(column, []).append(cell)
    return Grid(
        row_axes=tuple(axis.name for axis in down),
        column_axis=across.name,
        columns=across.values,
        rows=tuple(
            GridRow(labels=labels, slots=tuple(tuple(row.get(c, ())) for c in across.values))
            for labels, row in slots.items()
        ),
        fixed=fixed,
    )


def _place(cell: CellReport, axes: list[Axis]) -> tuple[int, ...]:
    """Order by the axes' own order of values, not by spelling: 2 layers come before 12."""
    return tuple(
        axis.values.index(label) if (label := cell.factors.get(axis.name, "")) in axis.values else -1
        for axis in axes
    )
