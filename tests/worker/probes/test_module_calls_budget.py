"""How deep modules are recorded, as deep as a step affords; and how many short calls are passed over for one that is looked at."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

from nsadiag.worker import session
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.autograd import module_calls


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    found = importlib.import_module("nsadiag.worker.probes.autograd.modules")
    monkeypatch.setattr(found, "_full", True)
    monkeypatch.setattr(found, "_per_step", {})
    monkeypatch.setattr(found, "_depth_limit", module_calls.EVERY_DEPTH)
    monkeypatch.setattr(module_calls.calls, "limit", module_calls.EVERY_DEPTH)
    yield found
    module_calls.calls_by_depth.clear()


def review(modules, counts: dict[int, int], steps: int) -> int:  # type: ignore[no-untyped-def]
    """The limit after a stretch of steps in which those calls were seen."""
    module_calls.calls_by_depth.clear()
    module_calls.calls_by_depth.update(counts)
    modules._steps_counted = steps
    modules._review(0.005)
    return module_calls.calls.limit


def test_a_level_that_did_not_fit_is_not_tried_again(modules, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(budget, "afforded", lambda step_s, events: 20)
    assert review(modules, {0: 4, 1: 68, 2: 384}, steps=4) == 2
    assert [review(modules, {0: 12, 1: 204}, steps=12) for _ in range(3)] == [2, 2, 2]


def test_it_is_recorded_once_steps_are_long_enough(modules, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(budget, "afforded", lambda step_s, events: 20)
    assert review(modules, {0: 4, 1: 68, 2: 384}, steps=4) == 2
    monkeypatch.setattr(budget, "afforded", lambda step_s, events: 200)
    assert review(modules, {0: 12, 1: 204}, steps=12) == module_calls.EVERY_DEPTH


def test_where_only_the_outermost_fits_the_others_are_not_even_passed_through(  # type: ignore[no-untyped-def]
    modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "learning", False)
    monkeypatch.setattr(modules.backward_now, "counting", False)
    monkeypatch.setattr(budget, "afforded", lambda step_s, events: 20)
    before = torch.nn.Module.__call__
    with module_calls.observed_calls():
        assert torch.nn.Module.__call__ is not before
        assert review(modules, {0: 4, 1: 80}, steps=4) == 1
        assert torch.nn.Module.__call__ is before
        monkeypatch.setattr(budget, "afforded", lambda step_s, events: 200)
        assert review(modules, {0: 4}, steps=4) > 1
        assert torch.nn.Module.__call__ is not before


@pytest.mark.parametrize(
    ("before_us", "call_us", "after_us", "passed_over"),
    [
        (15, 100, 5, 6),
        (30, 100, 10, 13),  # on a slower machine more of them
        (15, 20, 5, 33),
        (15, 20_000, 5, 0),
        (100_000, 100, 0, 16),  # a look at something new is no measure
        (100_000, 100_000, 0, 0),
    ],
)
def test_as_many_calls_are_passed_over_as_the_time_of_a_look_asks_for(
    before_us: float, call_us: float, after_us: float, passed_over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = module_calls._Calls()
    calls.free, calls.sparing = 0, True
    clock = iter(1.0 + us / 1e6 for us in (0, before_us, before_us + call_us, before_us + call_us + after_us))
    monkeypatch.setattr(module_calls, "monotonic", lambda: next(clock) + 1e-9)
    monkeypatch.setattr(module_calls._Calls, "_enter", lambda *_: 0)
    monkeypatch.setattr(session.recorded, "rank", SimpleNamespace(world_size=1))
    assert calls.observe(lambda: "answer", torch.nn.Identity(), (), {}) == "answer"
    assert calls.passing == passed_over
