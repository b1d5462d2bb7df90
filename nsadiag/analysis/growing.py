"""Whether steps keep getting longer, all the way through a run."""

from __future__ import annotations

import itertools

import pandas as pd

MIN_STEPS = 12
GROWTH = 2.5  # the last steps against the first ones
MIN_TREND = 0.5
# A busy machine makes some of the last steps of a short run slow by chance: there they have to grow one by one.
FEW_STEPS, MIN_TREND_OF_FEW = 40, 0.85
QUARTER_GROWTH = 1.1  # from each quarter of the steps to the next: a job that changes what it does grows once
MIN_GROWN_S = 0.02


def grows(settled: pd.DataFrame, measure: str, *, piled: bool = False) -> bool:
    """Whether steps grow, by enough, all the way: an evaluation, or a switch of models, is one jump.

    Where something is known to pile up in step after step it is none: that neighbours on the machine were quieter towards the
    end says nothing then.
    """
    times, own = _growth(settled, measure)
    # What grows steadily in CPU time may be small beside what others on the machine make of it on the clock.
    seconds = max(own, _growth(settled, "step_s")[1])
    wanted = MIN_TREND if len(settled) >= FEW_STEPS else MIN_TREND_OF_FEW
    steadily = trend_of(settled, measure) > wanted and (piled or _grows_throughout(settled[measure]))
    return times > GROWTH and seconds > MIN_GROWN_S and steadily


def _growth(settled: pd.DataFrame, measure: str) -> tuple[float, float]:
    """The last fifth of the steps against the first: how many times as long, and how many seconds longer."""
    fifth = len(settled) // 5
    first, last = (float(part[measure].median()) for part in (settled.iloc[:fifth], settled.iloc[-fifth:]))
    return last / max(first, 1e-6), last - first


def trend_of(settled: pd.DataFrame, measure: str) -> float:
    """Rank correlation with the step, which a few outliers do not move."""
    return float(settled.step.rank().corr(settled[measure].rank()))


def _grows_throughout(step_s: pd.Series[float]) -> bool:
    quarter = len(step_s) // 4
    medians = [float(step_s.iloc[n * quarter : (n + 1) * quarter].median()) for n in range(4)]
    return all(b > QUARTER_GROWTH * a for a, b in itertools.pairwise(medians))
