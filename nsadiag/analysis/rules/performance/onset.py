"""Change point in step time: the step from which on every step takes many times as long as before."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from nsadiag.analysis.relations.trend import PaceChange
from nsadiag.evidence.table import Table

WARM_UP = 2
FEWEST = 10  # steps on either side; with fewer, noise on a busy machine decides
MANY_TIMES = 8.0  # ratio of the medians after and before; unfreezing a backbone makes it two or three
APART = 3.0  # ratio of the fastest steps after to the median before
LEVEL = 2.0  # largest growth within either side, last third over first
OF_ALL = 0.1  # share of outliers allowed on either side
LASTED_S = 3.0  # total since then, without the longest step: a single pause is no slowdown


@dataclass(frozen=True, kw_only=True)
class Onset(PaceChange):
    """A lasting jump in step time."""

    step: int

    @property
    def times(self) -> float:
        return self.last_s / max(self.first_s, 1e-6)


def onset_of(steps: Table) -> Onset | None:
    """The jump in one rank's step times; None if there is none, or if it does not last."""
    settled = steps.sort_values("step").iloc[WARM_UP:]
    if len(settled) < 2 * FEWEST:
        return None
    # Change point by cumulative sum; on logarithms, so that a single long step does not count as one.
    logs = [math.log(max(step_s, 1e-6)) for step_s in settled.step_s]
    mean = statistics.fmean(logs)
    lacking = [*itertools.accumulate(mean - log for log in logs)][FEWEST - 1 : -FEWEST]
    at = lacking.index(max(lacking)) + FEWEST
    before, since = settled.iloc[:at], settled.iloc[at:]
    found = Onset(step=since.step[0], before=before, since=since)
    # Other jobs on the machine lengthen some short steps, and an evaluation one in ten.
    apart = float(since.step_s.quantile(OF_ALL)) > APART * found.first_s
    apart = apart and float(before.step_s.quantile(1 - OF_ALL)) < found.last_s
    lasts = float(since.step_s.sum() - since.step_s.max()) >= LASTED_S
    jumps = lasts and apart and found.times >= MANY_TIMES and _is_level(before) and _is_level(since)
    return found if jumps else None


def _is_level(steps: Table) -> bool:
    """Whether step time is flat within this side: steady growth is a trend, not a jump."""
    third = len(steps) // 3
    return float(steps.step_s.iloc[-third:].median()) < LEVEL * float(steps.step_s.iloc[:third].median())
