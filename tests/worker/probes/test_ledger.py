"""The ledger of states: what is put back has the entry of what was taken, and a schedule is known by what it was made with."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from nsadiag.worker.probes.correctness.invariants.ledger import course, entry


def trained(steps: int, start: dict[str, Any] | None = None, **settings: Any) -> torch.optim.Optimizer:
    """An optimizer after so many steps, from a state where one is given."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(3))]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, **settings)
    if start is not None:
        optimizer.load_state_dict(start)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer


def test_a_state_that_is_put_back_has_the_entry_that_it_was_taken_with() -> None:
    taken = trained(3)
    back = trained(0, copy.deepcopy(taken.state_dict()))
    assert entry(back)["state"] == entry(taken)["state"] != 0
    assert entry(back)["exact"] == entry(trained(0))["exact"] != entry(taken)["exact"]


def test_an_optimizer_that_begins_anew_has_no_state() -> None:
    assert entry(trained(0))["state"] == 0
    assert entry(trained(3))["state"] != entry(trained(4))["state"]


def to_the(power: float) -> Callable[[int], float]:
    return lambda step: power**step


MADE: dict[str, Callable[[Any], Any]] = {
    "closure": lambda o: schedules.LambdaLR(o, to_the(0.9)),
    "another closure": lambda o: schedules.LambdaLR(o, to_the(0.8)),
    "partial": lambda o: schedules.LambdaLR(o, functools.partial(pow, 0.9)),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 9),
    "shorter cosine": lambda o: schedules.CosineAnnealingLR(o, 8),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: schedules.OneCycleLR(o, 1.0, total_steps=20),
    "longer cycle": lambda o: schedules.OneCycleLR(o, 1.0, total_steps=21),
    "warmup": lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1), schedules.CosineAnnealingLR(o, 9)], [3]),
    "other warmup": lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1), schedules.CosineAnnealingLR(o, 7)], [3]),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_course_stays_what_it_was_made_with(name: str) -> None:
    optimizer = trained(0)
    schedule = MADE[name](optimizer)
    begun = course(schedule)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert course(schedule) == begun


def test_courses_of_other_numbers_or_functions_differ() -> None:
    assert len({course(made(trained(0))) for made in MADE.values()}) == len(MADE)
