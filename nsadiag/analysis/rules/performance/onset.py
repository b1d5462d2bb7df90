"""The onset of slowness: the step from which on all steps take many times as long as all before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

WARM_UP = 2
FEWEST = 10  # steps on either side: of fewer, a busy machine makes what it likes
MANY_TIMES = 8.0  # the median since then against the median before: an unfrozen backbone makes two or three times of it
APART = 3.0  # times, by which the quickest steps since then are slower than the median before
LEVEL = 2.0  # times, by which steps on either side may have grown from their first third to the last
OF_ALL = 0.1  # of the steps on either side, which may be unlike the others
LASTED_S = 3.0  # since then, without the longest step: one pause is no pace
MORE_GIVEN = 1.5  # times as much


@dataclass(frozen=True, kw_only=True)
class Onset:
    """A jump in the time of a step, for good."""

    step: int
    before: pd.DataFrame = field(compare=False, repr=False)
    since: pd.DataFrame = field(compare=False, repr=False)

    @property
    def first_s(self) -> float:
        """The median step before."""
        return float(self.before.step_s.median())

    @property
    def last_s(self) -> float:
        """The median step since then."""
        return float(self.since.step_s.median())

    @property
    def times(self) -> float:
        return self.last_s / max(self.first_s, 1e-6)

    @property
    def times_given(self) -> float:
        """The elements that a step is given since then, as a multiple of those before; 0 where that is not known."""
        first = float(self.before.elements.median())
        return float(self.since.elements.median()) / first if first > 0 else 0.0

    @property
    def is_given_more(self) -> bool:
        return self.times_given >= MORE_GIVEN

    def grown_s(self, column: str) -> float:
        """The time by which that part of a step has become longer."""
        return float(self.since[column].median() - self.before[column].median())


def onset_of(steps: pd.DataFrame) -> Onset | None:
    """The jump in one rank's steps, in order; None where they do not jump, or not for good."""
    settled = steps.sort_values("step").iloc[WARM_UP:]
    if len(settled) < 2 * FEWEST:
        return None
    # A change point: where the sum of what lies below the mean is largest. In logarithms, so that one long step is none.
    logs = np.log(np.maximum(settled.step_s.to_numpy(dtype=float), 1e-6))
    lacking = np.cumsum(logs.mean() - logs)[FEWEST - 1 : -FEWEST]
    at = int(lacking.argmax()) + FEWEST
    before, since = settled.iloc[:at], settled.iloc[at:]
    found = Onset(step=int(since.step.iloc[0]), before=before, since=since)
    # Neighbours on the machine lengthen some of the short steps, and an evaluation one in ten.
    apart = float(since.step_s.quantile(OF_ALL)) > APART * found.first_s
    apart = apart and float(before.step_s.quantile(1 - OF_ALL)) < found.last_s
    lasts = float(since.step_s.sum() - since.step_s.max()) >= LASTED_S
    jumps = lasts and apart and found.times >= MANY_TIMES and _is_level(before) and _is_level(since)
    return found if jumps else None


def _is_level(steps: pd.DataFrame) -> bool:
    """Whether they do not grow among themselves: what grows all the way is a trend."""
    third = len(steps) // 3
    return float(steps.step_s.iloc[-third:].median()) < LEVEL * float(steps.step_s.iloc[:third].median())
