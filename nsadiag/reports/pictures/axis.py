"""The time axis of a run: bands of their own scale, since start-up and silence last longer than all that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsadiag.reports.words import duration

WIDTH = 1000.0
# A band's share of the width, before those that are missing give theirs to the others.
SHARES = {"start-up": 11.0, "earlier": 15.0, "recent": 54.0, "after": 20.0}
SHORT = 0.02  # of the recent band: a silence below this is no band of its own


@dataclass(frozen=True, kw_only=True)
class Band:
    """One stretch of time at one scale."""

    name: str  # a key of SHARES
    label: str
    start_s: float
    end_s: float
    left: float
    width: float

    @property
    def text(self) -> str:
        """`start-up, 14.2 s`."""
        return f"{self.label}, {duration(self.end_s - self.start_s)}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Bands in order of time, without a gap between them."""

    bands: tuple[Band, ...]

    def x(self, t_s: float) -> float:
        """The place of a moment, 0 to WIDTH; what lies outside is at the edge."""
        if not self.bands or t_s <= self.bands[0].start_s:
            return 0.0
        for band in self.bands:
            if t_s <= band.end_s:
                part = (t_s - band.start_s) / ((band.end_s - band.start_s) or 1.0)
                return band.left + part * band.width
        return WIDTH


def axis_of(moments: dict[str, float], labels: dict[str, str], begin: float = 0.0) -> Axis:
    """The axis up to `moments["after"]`: each moment ends the band of its name; labels are those of the bands."""
    spans: list[tuple[str, float, float]] = []
    for name in SHARES:
        end = moments.get(name)
        if end is not None and end > begin:
            spans.append((name, begin, end))
            begin = end
    return Axis(bands=tuple(_laid_out(_without_slivers(spans), labels)))


def _without_slivers(spans: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    recent = next((end - start for name, start, end in spans if name == "recent"), 0.0)
    kept: list[tuple[str, float, float]] = []
    for name, start, end in spans:
        if name == "after" and kept and end - start < SHORT * recent:
            kept[-1] = (kept[-1][0], kept[-1][1], end)
        else:
            kept.append((name, start, end))
    return kept


def _laid_out(spans: Sequence[tuple[str, float, float]], labels: dict[str, str]) -> list[Band]:
    whole = sum(SHARES[name] for name, _, _ in spans) or 1.0
    found, left = [], 0.0
    for name, start, end in spans:
        width = SHARES[name] / whole * WIDTH
        label = labels.get(name, name)
        found.append(Band(name=name, label=label, start_s=start, end_s=end, left=left, width=width))
        left += width
    return found
