"""Where the time of a step goes: each moment counts once, and the parts add up to the step."""

from __future__ import annotations

import pytest

from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.facts.time_parts import Made, StepParts, parts_of
from nsadiag.evidence.ring.blackbox import Kind

THREAD = 7


def span(kind: Kind, begin_s: float, end_s: float | None, name: str = "", thread: int = THREAD) -> Span:
    return Span(
        rank=0, thread=thread, kind=int(kind), name=name, group="", number=0, begin_s=begin_s, end_s=end_s,
        place="", detail="", step=0, elements=0,
    )  # fmt: skip


def parts(*spans: Span, gradients: tuple[float, ...] = (), reduces: bool = False) -> StepParts:
    """Of one step from 10 to 20 s."""
    (found,) = parts_of(0, [Made(1, 10.0, 20.0)], gradients, THREAD, spans=spans, reduces=reduces)
    return found


def test_a_step_of_ddp_waits_for_peers_after_its_own_last_gradient() -> None:
    spans = (
        span(Kind.DATA, 10.0, 11.0), span(Kind.FORWARD, 11.0, 13.0), span(Kind.BACKWARD, 13.0, 18.0),
        span(Kind.OPTIMIZER, 18.0, 18.5), span(Kind.IO, 18.5, 19.5),
    )  # fmt: skip
    found = parts(*spans, gradients=(13.5, 15.0), reduces=True)
    assert found == StepParts(0, 1, 10.0, 4.5, 3.0, 1.0, 1.0, 0.5)
    alone = parts(*spans, gradients=(13.5, 15.0))
    assert (alone.compute_s, alone.peers_s) == (7.5, 0.0), "who reduces nothing waits for nobody"


def test_a_collective_within_a_forward_is_no_computing() -> None:
    found = parts(span(Kind.FORWARD, 10.0, 16.0), span(Kind.COLLECTIVE, 12.0, 15.0))
    assert (found.compute_s, found.peers_s, found.rest_s) == (3.0, 3.0, 4.0)


@pytest.mark.parametrize(("name", "waits_s"), [("wait layers.0", 2.0), ("unshard layers.0", 0.0)])
def test_of_fsdps_units_only_the_wait_is_one(name: str, waits_s: float) -> None:
    found = parts(span(Kind.FORWARD, 10.0, 20.0), span(Kind.UNIT, 12.0, 14.0, name))
    assert (found.peers_s, found.compute_s) == (waits_s, 10.0 - waits_s)


def test_a_span_that_goes_on_through_two_steps_counts_in_each_with_its_share() -> None:
    steps = [Made(1, 10.0, 20.0), Made(2, 20.0, 30.0)]
    found = [*parts_of(0, steps, (), THREAD, spans=[span(Kind.DATA, 18.0, 23.0)], reduces=False)]
    assert [each.input_s for each in found] == [2.0, 3.0]


def test_what_other_threads_do_is_none_of_the_steps_time() -> None:
    assert parts(span(Kind.IO, 10.0, 20.0, thread=8)).rest_s == 10.0


def test_the_parts_of_steps_without_phases_are_not_known() -> None:
    (found,) = parts_of(0, [Made(9, 0.0, 1.0, False)], (), THREAD, spans=(), reduces=False)
    assert found == StepParts(0, 9, 1.0, None, None, None, None, None)
