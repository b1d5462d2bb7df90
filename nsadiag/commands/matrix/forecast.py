"""A forecast for the remaining cells from the finished ones: seconds, memory and the longest legitimate silence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from nsadiag.analysis.matrix.scaling.axes import effort, sizes_in
from nsadiag.commands.matrix.cells import CellResult
from nsadiag.spec import Matrix

if TYPE_CHECKING:
    from nsadiag.analysis.matrix.scaling.model import CostModel
    from nsadiag.analysis.matrix.scaling.points import Point

FORETOLD = ("run_s", "step_s", "peak_rss_mib", "peak_device_mib", "quiet_s")
# Fitting may take so much of the time since it was last done: cells of a second are not worth a model each.
SHARE_OF_TIME = 0.02
SHORT_PAUSE_S = 1.0
# Whatever others did in silence, a job in which nothing at all moves for three times that long is worth a look.
MOST_QUIET_S = 60.0


class Forecast:
    """Learns from each cell as it ends. Called from one thread."""

    def __init__(self, matrix: Matrix) -> None:
        axes = {name: axis.labels() for name, axis in matrix.axes.items()}
        self.sizes: Mapping[str, Mapping[str, float]] = sizes_in(axes, matrix.scale)
        self._points: list[Point] = []
        self._models: dict[str, CostModel | None] = {}
        self._told: dict[tuple[str, bool], dict[str, Any]] = {}
        self._walls: list[float] = []
        self._fitted_of, self._fitted_at, self._fit_took_s = 0, 0.0, 0.0

    def effort(self, result: CellResult) -> float:
        """By which cells are put in order: from cheap to dear, as far as that can be told before any was run."""
        return effort(result.cell.factors, result.cell.world_size, self.sizes)

    def learn(self, result: CellResult, stopped: str | None) -> None:
        """Learn from a finished cell; `stopped` is that of its watch.json."""
        from nsadiag.analysis.matrix.scaling.points import point_of

        self._points.append(point_of(result.to_json(), self.sizes, stopped=stopped))
        self._walls.append(float(result.costs.get("run_s") or result.wall_s or 0.0))

    def predict(self, result: CellResult, *, beside: bool) -> dict[str, Any]:
        """By measure, value and interval, of what can be told."""
        if not self._points:
            return {}
        self._refit()
        known = self._told.get((result.cell.id, beside))
        if known is None:
            known = self._told[result.cell.id, beside] = self._predict(result, beside)
        return known

    def _predict(self, result: CellResult, beside: bool) -> dict[str, Any]:
        from nsadiag.analysis.matrix.scaling.points import point_of

        point = point_of(result.to_json() | {"beside": float(beside)}, self.sizes)
        told = ((name, model.predict(point)) for name, model in self._models.items() if model)
        return {name: found.to_json() for name, found in told if found}

    def seconds(self, result: CellResult) -> float | None:
        """The predicted duration, else the average of the other cells."""
        told = result.predicted.get("run_s") or self.predict(result, beside=False).get("run_s")
        if told:
            return float(told["value"])
        return median(self._walls) if self._walls else None

    def rank_mib(self, result: CellResult) -> float | None:
        """The most that a rank of it may hold in memory, where that can be told."""
        told = self.predict(result, beside=True).get("peak_rss_mib")
        return float(told["high"]) if told else None

    def all_seconds(self, results: Iterable[CellResult]) -> dict[str, float]:
        """By cell, of those of which anything can be said."""
        told = {result.cell.id: self.seconds(result) for result in results}
        return {name: seconds for name, seconds in told.items() if seconds is not None}

    def _refit(self) -> None:
        since = time.monotonic() - self._fitted_at
        if len(self._points) == self._fitted_of or self._fit_took_s > SHARE_OF_TIME * since:
            return
        from nsadiag.analysis.matrix.scaling.model import fit_model

        started = time.monotonic()
        names = [name for name in FORETOLD if name != "quiet_s" or self._pauses_matter()]
        self._models = {name: fit_model(self._points, name) for name in names}
        self._told.clear()
        self._fitted_of, self._fitted_at = len(self._points), time.monotonic()
        self._fit_took_s = self._fitted_at - started

    def _pauses_matter(self) -> bool:
        """Shorter ones are within the patience that every job has."""
        return any(point.measured.get("quiet_s", 0.0) > SHORT_PAUSE_S for point in self._points)

    def summary(self) -> Mapping[str, Any]:
        """`scaling` of matrix.json."""
        if not self._points:
            return {}
        from nsadiag.analysis.matrix.scaling.summary import summary

        return summary(self._points)


def expected_quiet_s(predicted: Mapping[str, Any]) -> float:
    """The longest pause that the watch should be ready for."""
    told = predicted.get("quiet_s")
    return min(float(told["high"]), MOST_QUIET_S) if told else 0.0
