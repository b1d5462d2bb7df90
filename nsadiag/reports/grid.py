"""Lays a matrix out as a table: the last axis across, the others down; or what differs from the base down, where few cells were run."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.reports.model import Axis, CellReport, MatrixReport

REPEAT = "repeat"
MOST_ROW_AXES = 3
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
    by_difference: bool = False  # rows are what differs from the base, where axes would be mostly labels

    def labels_of(self, cell: CellReport, axes: tuple[Axis, ...]) -> tuple[tuple[str, str], ...]:
        """The label of each cell: its settings of the varied axes, or its id where those are many."""
        if self.by_difference:
            return (("cell", cell.id),)
        return tuple((axis.name, cell.factors.get(axis.name, "")) for axis in axes if len(axis.values) > 1)


def grid_of(matrix: MatrixReport) -> Grid:
    varied = [axis for axis in matrix.axes if len(axis.values) > 1]
    fixed = tuple((axis.name, axis.values[0]) for axis in matrix.axes if len(axis.values) == 1)
    across = varied[-1] if varied else Axis(name="", values=("",))
    if _is_sparse(matrix, varied):
        across = _best_across(matrix, varied)
        return _differences(matrix, varied, across, fixed)
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
        rows=_rows(slots, across.values),
        fixed=fixed,
    )


def _is_sparse(matrix: MatrixReport, varied: list[Axis]) -> bool:
    """Whether a row for every combination of settings would be mostly labels: many axes, few of their combinations."""
    return len(varied) > MOST_ROW_AXES + 1 and all(axis.base for axis in varied if axis.name != REPEAT)


def _best_across(matrix: MatrixReport, varied: list[Axis]) -> Axis:
    """The axis with which the table has the fewest rows; of several the one with the most settings in use."""
    possible = [axis for axis in varied if axis.name != REPEAT]

    def rows(axis: Axis) -> int:
        return len(
            {tuple(v for n, v in c.factors.items() if n not in (axis.name, REPEAT)) for c in matrix.cells}
        )

    return min(possible, key=rows)


def _differences(
    matrix: MatrixReport, varied: list[Axis], across: Axis, fixed: tuple[tuple[str, str], ...]
) -> Grid:
    """One label a row: what is not as in the base."""
    down = [axis for axis in varied if axis.name not in (across.name, REPEAT)]
    slots: dict[tuple[str, ...], dict[str, list[CellReport]]] = {}
    for cell in matrix.cells:
        other = [f"{a.name}={v}" for a in down if (v := cell.factors.get(a.name, a.base)) != a.base]
        row = slots.setdefault((", ".join(other) or "nothing: the base",), {})
        row.setdefault(cell.factors.get(across.name, across.base), []).append(cell)
    used = tuple(value for value in across.values if any(value in row for row in slots.values()))
    return Grid(
        row_axes=("what differs from the base",),
        by_difference=True,
        column_axis=across.name,
        columns=used,
        rows=_rows(dict(sorted(slots.items(), key=lambda item: item[0][0].count("="))), used),
        fixed=fixed,
    )


def _rows(
    slots: dict[tuple[str, ...], dict[str, list[CellReport]]], columns: tuple[str, ...]
) -> tuple[GridRow, ...]:
    return tuple(
        GridRow(labels=labels, slots=tuple(tuple(row.get(column, ())) for column in columns))
        for labels, row in slots.items()
    )


def _place(cell: CellReport, axes: list[Axis]) -> tuple[int, ...]:
    """Order by the axes' own order of values, not by spelling: 2 layers come before 12."""
    return tuple(
        axis.values.index(label) if (label := cell.factors.get(axis.name, "")) in axis.values else -1
        for axis in axes
    )
