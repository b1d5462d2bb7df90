"""Short steps of a rank without peers: of some in a row the phases are recorded, and those that follow are counted alone.

What the phases of a step cost (forward, backward, gradients, optimizer) does not depend on how long it is. Nothing has to be
compared with another rank's here, and a hang is located by its stack. A step that is looked at closely, one whose loss
is not finite, and those that follow two long ones are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from nsadiag.evidence.probes import are_default as are_default_of
from nsadiag.worker.probes.autograd import module_calls
from nsadiag.worker.recorder import Recorder

RECORDED = 4  # steps in a row
MOST = 256  # steps between
# At least, where any do: what is done as a rest ends costs as much as two steps that are recorded.
REST_S = 0.05
# Their cost, in events as `budget.event_s` finds them: code and data of probes that have rested are in no cache.
PHASES = 120.0
SHARE = 0.025  # of the steps' time, for that
LEFT_OUT = "phases left out"  # the name of the event that ends a step
LONG = 8.0  # times as long as steps are: two in a row are no neighbour's turn on the CPU


class Resting:
    """The state that probes ask for without a call."""

    now = False  # whether the phases of the step that runs now are left out
    left = RECORDED  # steps until that may change
    passed = 0  # steps that were counted alone since `turn`
    since = 0.0  # when the step that runs now began
    long_s = 0.0  # length of a long step
    long = 0  # steps in a row that were


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Everything that a rest depends on: seconds of a step, the last one and an event, and the steps until one that must be recorded."""

    step_s: float
    last_s: float
    event_s: float
    steps: int


resting = Resting()
# Called where that changes, between two steps.
on_change: list[Callable[[bool], None]] = []


def wake() -> None:
    """Has what is left of this step, and the next ones, recorded."""
    _set(False)
    resting.left, resting.long = RECORDED, 0


def is_passed_over(rank: Recorder) -> bool:
    """At the end of a step that rests: counts it, unless the rest is over."""
    box, state = rank.box, resting
    step, now = box.step + 1, monotonic()
    state.long = state.long + 1 if now - state.since > state.long_s else 0
    if state.left <= 1 or state.long > 1:
        return False
    state.left -= 1
    state.passed += 1
    state.since = now
    box.step = step
    box.count_steps(step)
    module_calls.calls.passing = module_calls.MOST
    return True


def turn(rank: Recorder, now: float, *, closely: bool, lengths: Callable[[], Lengths]) -> None:
    """At the end of each other step: decides on the next."""
    state, calls = resting, module_calls.calls
    state.passed, state.since = 0, now
    # Dynamo guards what it has compiled by the hooks that parameters had: it would compile again where these come and go.
    if (
        rank.world_size > 1
        or closely
        or not calls.sparing
        or module_calls.patches.compiled
        or (state.now and state.long > 1)
    ):
        wake()
    else:
        state.left -= 1
    if state.left <= 0:
        found = None if state.now else lengths()
        steps = steps_between(found) if found else 0
        state.long_s = LONG * found.step_s if found else 0.0
        _set(bool(steps))
        state.left = steps or RECORDED
    if state.now:
        rank.step_name, calls.passing, calls.free = rank.names(LEFT_OUT), module_calls.MOST, 0
    else:
        rank.step_name, calls.passing, calls.free = 0, 0, module_calls.FREE


def steps_between(found: Lengths) -> int:
    """Number of steps that rest after RECORDED ones; 0 where what is recorded of them is no burden."""
    if not found.step_s or found.last_s > LONG * found.step_s:
        return 0
    times = PHASES * found.event_s / (SHARE * found.step_s)
    wanted = max(int(RECORDED * (times - 1)), int(REST_S / found.step_s))
    return min(wanted, MOST, found.steps) if times >= 2 else 0


def are_default() -> bool:
    """Whether the probes of this process are those that nobody has asked for: of what is asked for nothing is left out."""
    return are_default_of(os.environ.get("NSADIAG_PROBES", "light"))


def _set(now: bool) -> None:
    if now != resting.now:
        resting.now = now
        for each in on_change:
            each(now)
