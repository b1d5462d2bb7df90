"""Which optimizer's steps are the job's steps, where there are several."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

# The package has a function of the same name.
probe = importlib.import_module("nsadiag.worker.probes.training.optimizer")


class Names:
    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return 1


class Rank:
    """Stands for a rank's recorder: counts what it is told."""

    def __init__(self) -> None:
        self.names, self.box, self.steps = Names(), self, 0
        self.step = 0

    def emit(self, *_: Any) -> None:
        pass

    def step_ended(self) -> None:
        self.steps += 1
        self.step += 1


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    one = Rank()
    monkeypatch.setattr(probe.session.recorded, "rank", one)
    monkeypatch.setattr(probe.budget, "step_ended", lambda: None)
    monkeypatch.setattr(probe, "_counting", None)
    monkeypatch.setattr(probe, "_others", 0)
    return one


def made() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)


def test_two_optimizers_of_one_loop_make_one_step_of_the_job(rank: Rank) -> None:
    critic, actor = made(), made()
    with probe.optimizer():
        for n in range(200):
            critic.step()
            if n % 5 == 4:
                actor.step()
    assert rank.steps == 200


def test_an_optimizer_that_steps_more_rarely_goes_on_counting(rank: Rank) -> None:
    actor, critic = made(), made()
    with probe.optimizer():
        for n in range(200):
            if n % 5 == 0:
                actor.step()
            critic.step()
    assert rank.steps == 40


def test_the_optimizer_of_the_next_stage_takes_over_although_the_last_one_is_kept(rank: Rank) -> None:
    stages = [made(), made()]
    with probe.optimizer():
        for stage in stages:
            for _ in range(200):
                stage.step()
    assert rank.steps == 400 - probe.RESTED
