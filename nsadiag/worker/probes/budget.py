"""The budget of a probe: a share of the job's own step, learnt while it trains."""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter
from types import SimpleNamespace

from nsadiag.evidence.probes import is_light
from nsadiag.evidence.ring.blackbox import HEADER_BYTES, RECORD_BYTES, make_emit
from nsadiag.worker import session
from nsadiag.worker.probes import rests
from nsadiag.worker.probes.autograd.backward import now as backward_now

# Of a step's time, for one kind of observation; what comes of it is measured by benchmarks/cost/overhead.py.
SHARE = {"light": 0.001, "full": 0.008}
# What an event costs between a long step's matrix products, over what `event_s` finds: those leave neither the
# interpreter's code nor its data in any cache. Full, which is asked for, stays below its aims without.
COLDER = {"light": 8.0, "full": 1.0}
TIMED_EVENTS = 30
CACHE_BYTES = 1 << 20  # written between two of them
AT_LEAST = {"light": 2, "full": 4}
# Steps after which the budget is looked at again; then after 16, 64, 256, 1024, and every 1024.
FIRST_REVIEW = 4
REVIEWED_EVERY = 1024
APART_S = 5.0  # these at least: a review takes some milliseconds
UNTIL_KNOWN = 20  # steps, after which it is known how long they are

# Called with `step_s()` when a budget is due for review.
on_review: list[Callable[[float], None]] = []
# Called between two steps where the next one is to be looked at closely, and where it is no longer: at reviews, and
# where the graph is counted.
on_closeness: list[Callable[[bool], None]] = []
# Called at the end of every step.
on_step: list[Callable[[], None]] = []
# Called with True before the steps that follow steps 1, 2, 4, 8, ..., and with False when they are over.
on_doubling: list[Callable[[bool], None]] = []
learning = (
    True  # whether the step that begins now is one of the few that are looked at closely even by light probes
)
_recent: deque[float] = deque(maxlen=15)
_steps = 0
_doubled = False
_closely: bool | None = (
    None  # whether the step that runs now is looked at closely; not known before the first ends
)
_review_at = FIRST_REVIEW
_last = 0.0
_event_s = 0.0  # at the last review
_reviewed = 0.0  # when that was


def is_full() -> bool:
    """Whether the user asked for more than the default: `full`, or probes by name."""
    return not is_light(os.environ.get("NSADIAG_PROBES", "light"))


def event_s() -> float:
    """Seconds that one event costs here and now where its data has to come from memory; in a ring that is thrown away.

    One after the other, events cost a third of that.
    """
    emit = make_emit(
        bytearray(HEADER_BYTES + TIMED_EVENTS * RECORD_BYTES), TIMED_EVENTS, SimpleNamespace(step=0)
    )
    cold, other = bytearray(CACHE_BYTES), bytes(CACHE_BYTES)
    taken = []
    for _ in range(TIMED_EVENTS):
        cold[:] = other
        started = perf_counter()
        emit(0, 0)
        taken.append(perf_counter() - started)
    return statistics.median(taken)


def step_s() -> float:
    """Seconds that a step takes where nothing is in its way: a quarter of the last ones were quicker.

    What slows steps for a while, the job's start or a neighbour on the machine, slows what we do in them as well.
    """
    return sorted(_recent)[len(_recent) // 4]


def afforded(step_s: float, events: float) -> int:
    """Number of observations that a step of `step_s` seconds has room for, each as dear as so many events."""
    probes = "full" if is_full() else "light"
    return max(AT_LEAST[probes], int(step_s * SHARE[probes] / (events * COLDER[probes] * event_s())))


def forget_closeness() -> None:
    """Whoever subscribes next is told at the end of the step, however it is then."""
    global _closely
    _closely = None


def step_ended() -> None:
    """To be called once a step, at its end."""
    global _steps, _last, _review_at, _doubled, _closely, _event_s, _reviewed, learning
    now = monotonic()
    passed = rests.resting.passed
    began = rests.resting.since if passed else _last
    took_s = now - began if began else 0.0
    if began:
        _recent.append(took_s)
    _last = now
    _steps += 1 + passed
    learning = _steps >= _review_at and (_steps <= REVIEWED_EVERY or now - _reviewed >= APART_S)
    for subscriber in on_step:
        subscriber()
    doubled = not _steps & (_steps - 1)
    if doubled != _doubled:
        _doubled = doubled
        for each in on_doubling:
            each(doubled)
    closely = learning or backward_now.counting
    if closely != _closely:
        _closely = closely
        for told in on_closeness:
            told(closely)
    if learning:
        _review_at, _reviewed = min(4 * _steps, _steps + REVIEWED_EVERY), now
        _event_s = event_s()
        for review in on_review:
            review(step_s())
    if (rank := session.recorded.rank) is not None:
        # The first steps are slower, and so is each that follows a review.
        closely = closely or doubled or _steps < UNTIL_KNOWN
        rests.turn(rank, now, closely=closely, lengths=_lengths)


def _lengths() -> rests.Lengths:
    # Before a step that is looked at since its number is a power of two, and at a review that cannot wait, all is as ever.
    noted = 1 << _steps.bit_length()
    if _steps < _review_at <= REVIEWED_EVERY:
        noted = min(noted, _review_at)
    return rests.Lengths(step_s=step_s(), last_s=_recent[-1], event_s=_event_s, steps=noted - _steps)
