"""Measured against predicted as a plot: in plain text, and in pixels for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nsadiag.reports.scaling import Measured, MeasureReport, shown

PLOT_COLUMNS, PLOT_ROWS = 56, 16


def text_plot(measure: MeasureReport) -> str:
    """Measured (up) against predicted (right), both logarithmic; `.` where they are equal, `X` far off."""
    low, high = _range(measure.points)
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for column in range(PLOT_COLUMNS):
        row = round(column / (PLOT_COLUMNS - 1) * (PLOT_ROWS - 1))
        grid[row][column] = "."
    for point in sorted(measure.points, key=lambda p: p.is_off):
        column = round(_share(point.predicted, low, high) * (PLOT_COLUMNS - 1))
        row = round(_share(point.measured, low, high) * (PLOT_ROWS - 1))
        grid[row][column] = "X" if point.is_off else "o"
    labels = {PLOT_ROWS - 1: shown(measure.key, high), 0: shown(measure.key, low)}
    lines = [f"{labels.get(row, ''):>9} |{''.join(grid[row]).rstrip()}" for row in reversed(range(PLOT_ROWS))]
    foot = (
        f"{shown(measure.key, low)}{shown(measure.key, high):>{PLOT_COLUMNS - len(shown(measure.key, low))}}"
    )
    return "\n".join(
        [f"{'measured':>9}", *lines, f"{'':>9} +{'-' * PLOT_COLUMNS}", f"{'':>11}{foot}  predicted"]
    )


def _range(points: Sequence[Measured]) -> tuple[float, float]:
    every = [value for point in points for value in (point.measured, point.predicted)]
    low, high = min(every) / 1.1, max(every) * 1.1
    return low, high


def _share(value: float, low: float, high: float) -> float:
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A cell in the plot's pixels."""

    x: float
    y: float
    text: str
    is_off: bool


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Measured against predicted in a square of `side` pixels, with the ends of both axes."""

    name: str
    dots: tuple[Dot, ...]
    low: str
    high: str
    side: int = 260
    margin: int = 56


def scatter_of(measure: MeasureReport) -> Scatter:
    low, high = _range(measure.points)
    side, margin = Scatter.side, Scatter.margin
    span = side - 2 * margin

    def dot(point: Measured) -> Dot:
        said = f"{point.id}: {shown(measure.key, point.measured)}, predicted {shown(measure.key, point.predicted)}"
        x = margin + span * _share(point.predicted, low, high)
        y = side - margin - span * _share(point.measured, low, high)
        return Dot(x=round(x, 1), y=round(y, 1), text=said, is_off=point.is_off)

    return Scatter(
        name=measure.name,
        dots=tuple(dot(point) for point in sorted(measure.points, key=lambda p: p.is_off)),
        low=shown(measure.key, low),
        high=shown(measure.key, high),
    )
