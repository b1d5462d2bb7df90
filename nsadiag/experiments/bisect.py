"""Bisection along an ordered axis: halving, with repeats where a point is flaky, and a curve of costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nsadiag.evidence.records import Verdict
from nsadiag.experiments.slope import MARGIN, Slope, fitted

CURVE_POINTS = 4

State = Literal["good", "bad", "flaky", "other"]
Conclusion = Literal["threshold", "slope", "everywhere", "nowhere", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One run of one point."""

    directory: Path
    verdict: Verdict
    wall_s: float
    step_s: float | None  # what a step cost; None where none was completed
    steps: int
    timed_out: bool

    @property
    def too_long(self) -> bool:
        """It moved all the time, and took too long: a matter of cost, which has no threshold of its own."""
        return self.verdict.outcome == "slow" or (self.timed_out and self.verdict.outcome != "hung")

    @property
    def healthy(self) -> bool:
        return self.verdict.outcome == "healthy" and not self.timed_out

    @property
    def kind(self) -> str:
        """The key by which failures are compared: two failures of one class on one axis are the same."""
        return "too long" if self.too_long else self.verdict.cls


@dataclass(kw_only=True)
class Point:
    """One value of the axis, and every run of it."""

    label: str
    value: float | None  # None: the axis has an order, and no numbers
    runs: list[Seen] = field(default_factory=list)

    def state(self, wanted: str | None) -> State:
        """`wanted` is the kind of failure that is looked for; None: any."""
        failed = [run for run in self.runs if not run.healthy]
        if not failed:
            return "good"
        if wanted is not None and all(run.kind != wanted for run in failed):
            return "other"
        return "bad" if len(failed) == len(self.runs) else "flaky"

    @property
    def failures(self) -> int:
        return sum(not run.healthy for run in self.runs)

    @property
    def step_s(self) -> float | None:
        """The quickest run: what else loads the machine only ever adds."""
        return min((run.step_s for run in self.runs if run.step_s), default=None)


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The result of a bisection. `last_good` and `first_bad` are indices of neighbours, or as close as could be determined."""

    points: list[Point]
    conclusion: Conclusion
    wanted: str | None = None
    last_good: int | None = None
    first_bad: int | None = None
    slope: Slope | None = None

    @property
    def between(self) -> list[Point]:
        """Points between the two that fail in another way, so that nothing can be said of them."""
        if self.last_good is None or self.first_bad is None:
            return []
        low, high = sorted((self.last_good, self.first_bad))
        return self.points[low + 1 : high]


class Bisector:
    """Asks for runs of points until the boundary is known. `probe` runs a point, by its index, once more."""

    def __init__(self, points: list[Point], probe: Callable[[int], Seen], *, repeats: int) -> None:
        self.points, self._probe, self._repeats = points, probe, repeats
        self.wanted: str | None = None

    def run(self) -> Bisection:
        """The whole search; every run it makes is in `points`, also if it is interrupted."""
        ends = (0, len(self.points) - 1)
        for end in ends:
            self._see(end)
        good = next((end for end in ends if self._holds(end)), None)
        if good is None:
            return self._ended("everywhere" if self._alike(*ends) else "undecided")
        bad = ends[0] + ends[1] - good
        if self._holds(bad):
            return self._ended("nowhere")
        self.wanted = next(run.kind for run in reversed(self.points[bad].runs) if not run.healthy)
        good, bad = self._narrowed(good, bad)
        slope = self._slope(good, bad) if self.wanted == "too long" else None
        return self._ended("slope" if slope else "threshold", good, bad, slope)

    def _narrowed(self, good: int, bad: int) -> tuple[int, int]:
        """Halves until the two are neighbours and each has been run as often as was asked."""
        while True:
            middle = self._next_between(good, bad)
            if middle is not None:
                self._see(middle)
                state = self.points[middle].state(self.wanted)
                if state != "other":
                    good, bad = (middle, bad) if state == "good" else (good, middle)
                continue
            if not self._holds(good):
                # It failed when it was run again: the boundary lies further back.
                good, bad = self._last_that_held(good, bad), good
                continue
            self._repeat_failure(bad)
            return good, bad

    def _next_between(self, good: int, bad: int) -> int | None:
        """The middle, or what is nearest to it; points that fail in another way tell nothing, and are passed over."""
        low, high = sorted((good, bad))
        inside = [i for i in range(low + 1, high) if not self._is_other(i)]
        return min(inside, key=lambda i: (abs(2 * i - low - high), i)) if inside else None

    def _is_other(self, index: int) -> bool:
        point = self.points[index]
        return bool(point.runs) and point.state(self.wanted) == "other"

    def _holds(self, index: int) -> bool:
        """Whether the point is healthy as often as was asked; a flaky failure shows only in repeats."""
        point = self.points[index]
        while point.state(None) == "good" and len(point.runs) < self._repeats:
            self._see(index)
        return point.state(None) == "good"

    def _repeat_failure(self, bad: int) -> None:
        """So that a flaky point is known as one, with its rate."""
        while len(self.points[bad].runs) < self._repeats:
            self._see(bad)

    def _last_that_held(self, was_good: int, bad: int) -> int:
        """The nearest good point on the far side of one that turned out to fail; the good end has been repeated."""
        away = -1 if bad > was_good else 1
        end = 0 if away < 0 else len(self.points) - 1
        seen = (i for i in range(was_good + away, end + away, away) if self.points[i].runs)
        return next((i for i in seen if self.points[i].state(None) == "good"), end)

    def _alike(self, first: int, last: int) -> bool:
        kinds = [{run.kind for run in self.points[i].runs if not run.healthy} for i in (first, last)]
        return bool(kinds[0] & kinds[1])

    def _slope(self, good: int, bad: int) -> Slope | None:
        """The curve of the points that were quick enough, if the first that was not lies on it too."""
        first = self.points[bad]
        if first.value is None:
            return None
        self._see_more(good, bad)
        curve = self._curve(good)
        # Where not one step was completed, the whole run is the least that a step can have cost.
        cost = first.step_s or max((run.wall_s for run in first.runs), default=None)
        if curve is None or cost is None:
            return None
        return curve if cost < MARGIN * curve.at(first.value) else None

    def _curve(self, good: int) -> Slope | None:
        """Through the good points nearest to the boundary: far from it other things than the axis cost most."""
        known = [p for p in self.points if p.runs and p.value and p.step_s and p.state(None) == "good"]
        here = self.points[good].value or 0.0
        known.sort(key=lambda p: abs((p.value or 0.0) - here))
        return fitted([(p.value, p.step_s) for p in known[:CURVE_POINTS]])

    def _see_more(self, good: int, bad: int) -> None:
        """Halving leaves few points on the good side: a curve wants some more."""
        away = -1 if bad > good else 1
        rest = range(good, -1 if away < 0 else len(self.points), away)
        for index in rest:
            if sum(bool(self.points[i].runs) for i in rest) >= CURVE_POINTS:
                return
            if not self.points[index].runs:
                self._see(index)

    def _see(self, index: int) -> None:
        self.points[index].runs.append(self._probe(index))

    def _ended(
        self,
        conclusion: Conclusion,
        good: int | None = None,
        bad: int | None = None,
        slope: Slope | None = None,
    ) -> Bisection:
        if conclusion == "nowhere":
            slope = fitted([(p.value, p.step_s) for p in self.points if p.value and p.step_s])
        return Bisection(
            points=self.points,
            conclusion=conclusion,
            wanted=self.wanted,
            last_good=good,
            first_bad=bad,
            slope=slope,
        )
