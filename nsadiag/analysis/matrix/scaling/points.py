"""Measured cells as points, and what of them a cost model may learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The model's name of a measure, and the cost it is.
MEASURES = {
    "step_s": "step_s_median",
    "run_s": "run_s",
    "peak_rss_mib": "peak_rss_mib",
    "peak_device_mib": "peak_device_mib",
    "quiet_s": "quiet_s",
}
# A cell that was ended, or died, says nothing of how long it would have taken, or how much memory.
COMPLETED = ("healthy", "slow", "wrong")
RANKS = "world_size"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell: its sizes, its other factors, and what was measured."""

    id: str
    sizes: dict[str, float]
    kinds: dict[str, str]
    beside: float = 0.0  # share of its time in which other cells ran too
    measured: dict[str, float] = field(default_factory=dict)
    cut_short_s: float | None = None  # it went on when its time was over, after so long

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for repeats of the same cell."""
        return (*sorted(self.sizes.items()), *sorted(self.kinds.items()))


def point_of(
    cell: Mapping[str, Any], sizes: Mapping[str, Mapping[str, float]], *, stopped: str | None = None
) -> Point:
    """From a cell of matrix.json. `stopped` is that of its watch.json."""
    factors = cell["factors"]
    numbers = {name: known[factors[name]] for name, known in sizes.items() if factors.get(name) in known}
    numbers[RANKS] = float(cell.get("world_size") or 1)
    kinds = {name: label for name, label in factors.items() if name not in sizes and name != "repeat"}
    outcome = str((cell.get("verdict") or {}).get("outcome"))
    cut_short = stopped == "timeout" and outcome not in ("hung", "crashed")
    return Point(
        id=cell["id"],
        sizes=numbers,
        kinds=kinds,
        beside=float(cell.get("beside") or 0.0),
        measured=_measured(
            cell.get("costs") or {}, complete=outcome in COMPLETED and stopped is None, cut_short=cut_short
        ),
        cut_short_s=float(cell.get("wall_s") or 0.0) if cut_short else None,
    )


def _measured(costs: Mapping[str, Any], *, complete: bool, cut_short: bool) -> dict[str, float]:
    known = {
        name: float(costs[key]) for name, key in MEASURES.items() if costs.get(key) and float(costs[key]) > 0
    }
    if complete:
        return known
    # One whose time was over: its steps are as good as any.
    return {name: value for name, value in known.items() if name == "step_s" and cut_short}
