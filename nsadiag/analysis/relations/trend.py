"""Trends: steps that keep getting longer, all the way through a run."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from dataclasses import dataclass, field

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.registrations import Pile, largest_pile
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.table import Column, Table

MIN_STEPS = 12
GROWTH = 2.5  # the last steps against the first ones
MIN_TREND = 0.5
# A busy machine makes some of the last steps of a short run slow by chance: there they have to grow one by one.
FEW_STEPS, MIN_TREND_OF_FEW = 40, 0.85
QUARTER_GROWTH = 1.1  # from each quarter of the steps to the next: a job that changes what it does grows once
MIN_GROWN_S = 0.02
AT_BEST = 0.1  # of the steps, the fastest
MORE_GIVEN = 1.5  # times as much, from earlier steps to later ones: inputs grow by a schedule
MOST_POWER = 2  # of the input's length, that any part of a model is known to take: attention
OF_ONE_SIZE = 6  # steps that were given as much as each other, at least
ALIKE = 1.3  # how much longer the later ones of them may take


@dataclass(frozen=True, kw_only=True)
class PaceChange:
    """Earlier and later steps of one rank, of which the later ones take longer."""

    before: Table = field(compare=False, repr=False)
    since: Table = field(compare=False, repr=False)
    measure: str = (
        "step_s"  # by which they do: on the clock, in CPU time, or in that of the rank that took least
    )
    # Only the fastest steps show it: the others are as long as who shares the machine makes them.
    at_best: bool = False

    @property
    def first_s(self) -> float:
        """The time of an earlier step."""
        return self.typical(self.before[self.measure])

    @property
    def last_s(self) -> float:
        """The time of a later step."""
        return self.typical(self.since[self.measure])

    def typical(self, seconds: Column) -> float:
        """The median, or what the fastest tenth takes at most."""
        return float(seconds.quantile(AT_BEST) if self.at_best else seconds.median())

    def grown_s(self, column: str) -> float:
        """The time by which that part of a step has become longer."""
        return self.typical(self.since[column]) - self.typical(self.before[column])

    @property
    def times_given(self) -> float:
        """The elements given to a later step as a multiple of an earlier one's; 0 where that is not known."""
        first, last = (float(part.elements.median()) for part in (self.before, self.since))
        return last / first if first > 0 else 0.0

    @property
    def is_given_more(self) -> bool:
        return self.times_given >= MORE_GIVEN


@dataclass(frozen=True, kw_only=True)
class Slowing(PaceChange):
    """Steps that keep getting longer, by their first and last fifth; `settled` are those behind the first two."""

    settled: Table = field(compare=False, repr=False)
    pile: Pile | None  # what its own registrations left

    @property
    def trend(self) -> float:
        """Rank correlation with the step."""
        return _trend(self.settled, self.measure)

    @property
    def in_step(self) -> bool:
        """As much work for as much input, of which nobody knows whether it is meant to grow."""
        return self.is_given_more and self.last_s / self.first_s <= self.times_given**MOST_POWER


def slowing(rank: RankEvidence, case: Case) -> Slowing | None:
    """The trend of the rank's steps; None where they do not grow, or with their inputs alone."""
    steps = case.steps[case.steps["rank"] == rank.rank].sort_values("step")
    if len(steps) < MIN_STEPS:
        return None
    settled = steps.iloc[2:]
    least_cpu_s = case.steps.groupby("step").cpu_s.min()
    settled = settled.assign(least_cpu_s=settled.step.map(least_cpu_s.get))
    pile = largest_pile(rank, len(steps))
    # On a machine that others use as well, the clock may hide what CPU time shows, and a GPU shows on the clock alone.
    measures = ("step_s", "cpu_s")
    measure = next((m for m in measures if grows(settled, m, piled=pile is not None)), None)
    at_best = measure is None
    if at_best:
        # Neighbours who come one after the other lengthen even the fastest steps on the clock. CPU time they lengthen
        # far less, on a core that they share, and all ranks have not the same ones.
        shown_by = (*measures, "least_cpu_s") if pile else ("least_cpu_s",)
        measure = next((m for m in shown_by if grows_at_best(settled[m])), None)
    if measure is None or _given_more(settled, measure):
        return None
    before, since = _fifths(settled)
    return Slowing(before=before, since=since, measure=measure, settled=settled, pile=pile, at_best=at_best)


def grows(settled: Table, measure: str, *, piled: bool = False) -> bool:
    """Whether steps grow, by enough, all the way: an evaluation, or a switch of models, is one jump.

    Where something is known to pile up in step after step it is none: that neighbours on the machine were quieter towards the
    end says nothing then.
    """
    times, own = _growth(settled, measure)
    # What grows steadily in CPU time may be small beside what others on the machine make of it on the clock.
    seconds = max(own, _growth(settled, "step_s")[1])
    wanted = MIN_TREND if len(settled) >= FEW_STEPS else MIN_TREND_OF_FEW
    steadily = _trend(settled, measure) > wanted and (piled or _grows_throughout(settled[measure]))
    return times > GROWTH and seconds > MIN_GROWN_S and steadily


def _growth(settled: Table, measure: str) -> tuple[float, float]:
    """The last fifth of the steps against the first: how many times as long, and how many seconds longer."""
    first, last = (float(part[measure].median()) for part in _fifths(settled))
    return last / max(first, 1e-6), last - first


def _fifths(settled: Table) -> tuple[Table, Table]:
    fifth = len(settled) // 5
    return settled.iloc[:fifth], settled.iloc[-fifth:]


def _trend(settled: Table, measure: str) -> float:
    """Rank correlation with the step, which a few outliers do not move."""
    try:
        return statistics.correlation(_places(settled.step), _places(settled[measure]))
    except statistics.StatisticsError:  # all of them are equal
        return 0.0


def _places(values: Column) -> list[float]:
    """The place of each in their order; of equal ones, the mean of theirs."""
    begins, numbers = {}, Counter(values)
    before = 0
    for value in sorted(numbers):
        begins[value] = before + (numbers[value] - 1) / 2
        before += numbers[value]
    return [begins[value] for value in values]


def _grows_throughout(step_s: Column) -> bool:
    medians = [float(quarter.median()) for quarter in _quarters(step_s)]
    return all(b > QUARTER_GROWTH * a for a, b in itertools.pairwise(medians))


def grows_at_best(step_s: Column) -> bool:
    """The same of each quarter's fastest steps: whoever shares the machine makes steps longer, and none of them shorter."""
    if len(step_s) < FEW_STEPS:
        return False
    best = [float(quarter.quantile(AT_BEST)) for quarter in _quarters(step_s)]
    grown = all(b > QUARTER_GROWTH * a for a, b in itertools.pairwise(best))
    return grown and best[-1] > GROWTH * best[0] and best[-1] - best[0] > MIN_GROWN_S


def _quarters(step_s: Column) -> list[Column]:
    quarter = len(step_s) // 4
    return [step_s.iloc[n * quarter : (n + 1) * quarter] for n in range(4)]


def _given_more(settled: Table, measure: str) -> bool:
    """Whether the inputs grow by a schedule (a curriculum, images that double), and steps of one size take as long as ever."""
    before, since = _fifths(settled)
    if not PaceChange(before=before, since=since).is_given_more:
        return False
    sizes = [group[measure] for _, group in settled.groupby("elements") if len(group) >= OF_ONE_SIZE]
    if sum(map(len, sizes)) < len(settled) / 2:
        return False
    later = [_median_of_third(size, last=True) / max(_median_of_third(size), 1e-6) for size in sizes]
    return sum(times * len(size) for times, size in zip(later, sizes, strict=True)) < ALIKE * sum(
        map(len, sizes)
    )


def _median_of_third(times: Column, last: bool = False) -> float:
    third = len(times) // 3
    return float((times.iloc[-third:] if last else times.iloc[:third]).median())
