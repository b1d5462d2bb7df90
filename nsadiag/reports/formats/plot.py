"""Geometry of the cost plots: step time along one axis, a line per value of another, a panel per rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from nsadiag.reports.grid import Grid, GridRow, Slot, grid_of
from nsadiag.reports.model import CellReport, MatrixReport
from nsadiag.reports.words import duration

WIDTH, HEIGHT = 320, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 34
# More lines than this in one panel cannot be told apart, with or without colour.
MOST_LINES = 5
MOST_PANELS = 12


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured value, in the panel's pixels."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One value of the compared axis; `number` picks its colour and the shape of its points."""

    label: str
    number: int
    points: tuple[Point, ...]
    predicted: tuple[Point, ...] = ()  # what the other cells say of these, where a cost model could be fitted

    @property
    def path(self) -> str:
        return _path(self.points)

    @property
    def predicted_path(self) -> str:
        return _path(self.predicted)


def _path(points: tuple[Point, ...]) -> str:
    return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in points)


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark on an axis of the panel."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot; all of a matrix share their scales, so that panels compare by eye."""

    title: str
    lines: tuple[Line, ...]
    x_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def panels_of(matrix: MatrixReport) -> list[Panel]:
    """Step time by the first axis; none if there is no second value to compare or nothing was measured."""
    grid = grid_of(matrix)
    steps = [s for cell in matrix.cells if (s := cell.costs.step_s_median) is not None]
    if (
        grid.by_difference
        or not grid.row_axes
        or not steps
        or max(steps) <= 0
        or len(grid.columns) > MOST_LINES
    ):
        return []
    labels = list(dict.fromkeys(row.labels[0] for row in grid.rows))
    xs = dict(zip(labels, _positions(labels), strict=True))
    top = _round_up(max(steps))
    rest = list(dict.fromkeys(row.labels[1:] for row in grid.rows))
    told = matrix.scaling.predicted("step_s") if matrix.scaling else {}
    return [_panel(grid, labels_of_rest, xs, top, told) for labels_of_rest in rest[:MOST_PANELS]]


def _panel(
    grid: Grid, rest: tuple[str, ...], xs: dict[str, float], top: float, told: Mapping[str, float]
) -> Panel:
    rows = [row for row in grid.rows if row.labels[1:] == rest]
    named = zip(grid.row_axes[1:], rest, strict=True)
    return Panel(
        title=", ".join(f"{axis} {label}" for axis, label in named),
        lines=tuple(_lines(grid, rows, xs, top, told)),
        x_name=grid.row_axes[0],
        x_ticks=tuple(Tick(at=x, text=label) for label, x in xs.items()),
        y_ticks=tuple(Tick(at=_y(part * top, top), text=duration(part * top)) for part in (0, 0.5, 1)),
    )


def _lines(
    grid: Grid, rows: list[GridRow], xs: dict[str, float], top: float, told: Mapping[str, float]
) -> Iterable[Line]:
    for number, label in enumerate(grid.columns):
        points, predicted = [], []
        for row in rows:
            named, x = f"{grid.row_axes[0]} {row.labels[0]}, {label}", xs[row.labels[0]]
            step_s = _step_s(row.slots[number])
            if step_s is not None:
                points.append(Point(x=x, y=_y(step_s, top), text=f"{named}: {duration(step_s)}"))
            known = [told[cell.id] for cell in row.slots[number] if cell.id in told]
            if known:
                # One far above all that was measured stays at the edge.
                y = _y(min(median(known), top), top)
                predicted.append(Point(x=x, y=y, text=f"{named}, predicted: {duration(median(known))}"))
        if points:
            yield Line(label=label, number=number, points=tuple(points), predicted=tuple(predicted))


def _step_s(slot: Slot) -> float | None:
    measured = [cell.costs.step_s_median for cell in slot if cell.costs.step_s_median is not None]
    return median(measured) if measured else None


def _positions(labels: list[str]) -> list[float]:
    """Numbers at their true distances (a straight line then means linear cost), words evenly."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        values = [float(place) for place in range(len(labels))]
    low, span = min(values), (max(values) - min(values)) or 1.0
    inset = 14
    return [LEFT + inset + (value - low) / span * (WIDTH - LEFT - RIGHT - 2 * inset) for value in values]


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _round_up(value: float) -> float:
    """The next 1, 2, 4, 6 or 8 times a power of ten, whose half is round too."""
    unit: float = 10.0 ** math.floor(math.log10(value))
    return next((step * unit for step in (1, 2, 4, 6, 8) if step * unit >= value), 10 * unit)


def widths_of(cell: CellReport, longest_s: float) -> dict[str, float]:
    """Percent of a bar that each part of a step takes, the slowest cell filling it."""
    step_s, parts = cell.costs.step_s_median or 0.0, cell.costs.parts or {"rest": 1.0}
    # The mean step has another length than the median one, at which the bar ends.
    whole_s = sum(parts.values())
    return (
        {name: 100 * step_s / longest_s * part_s / whole_s for name, part_s in parts.items()}
        if longest_s > 0 < whole_s
        else {}
    )
