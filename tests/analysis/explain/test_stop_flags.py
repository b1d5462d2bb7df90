"""Frameworks' flags that end the training: what a rank notes of them, and what is made of one that some ranks alone have set."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.parting import Did, Job, step

from nsadiag.analysis.explain.candidate import Candidate
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.ring.reader import read_blackbox
from nsadiag.worker import session
from nsadiag.worker.recorder import Recorder

FIT, TEST, SET = "trainer.fit(", "trainer.test(", "trainer.should_stop = "
BY_LOSS = "if metrics['mse'] < self.target:\n            trainer.should_stop = True"


def parted(path: Path, told: str, rank_0: list[Did], rank_1: list[Did]) -> Candidate | None:
    """Rank 1 tests, rank 0 still trains."""
    job = Job(
        path,
        f"""
class TargetReached(Callback):
    def on_train_epoch_end(self, trainer, module):
        metrics = trainer.callback_metrics
        {told}

trainer.fit(model)
trainer.test(model)
""",
    )
    job.rank(0, job.stack(FIT, call="all_reduce"), *rank_0)
    job.rank(1, job.stack(TEST, call="broadcast"), *rank_1)
    return job.parted()


STOP: Did = (Kind.STOP, "should_stop", SET)
BATCH: Did = (Kind.DATA, "Readings", FIT)
TRAINED = [BATCH, *step(FIT), BATCH, *step(FIT)]


@pytest.mark.parametrize(
    ("told", "cls"),
    [
        (BY_LOSS, "data_divergent_control_flow"),
        ("trainer.should_stop = metrics['mse'] < self.target", "data_divergent_control_flow"),
        (
            "if trainer.global_rank == 1:\n            trainer.should_stop = True",
            "rank_conditional_collective",
        ),
    ],
)
@pytest.mark.parametrize("more", [step(FIT)[:2], [BATCH]])
def test_who_alone_told_the_framework_to_stop_left_the_training(
    told: str, cls: str, more: list[Did], tmp_path: Path
) -> None:
    found = parted(tmp_path, told, [*TRAINED, *more], [*TRAINED, STOP])
    assert found and (found.cls, found.guilty) == (cls, (1,))
    assert found.where and "should_stop" in (found.where.code or "")


@pytest.mark.parametrize(
    ("told", "rank_0", "rank_1"),
    [
        (BY_LOSS, TRAINED, [*TRAINED, STOP]),  # it may not have come to that line yet
        (BY_LOSS, [*TRAINED, STOP, BATCH], [*TRAINED, STOP]),  # it has as well
        (BY_LOSS, [*TRAINED, *TRAINED], [*TRAINED, STOP, *step(FIT)]),  # of an earlier fit
        ("if trainer.current_epoch > 3:\n            trainer.should_stop = True", [*TRAINED, BATCH], [*TRAINED, STOP]),
    ],
    ids=["behind", "both", "trained on", "by a counter"],
)  # fmt: skip
def test_nothing_is_laid_to_a_flag_that_need_not_be_what_parted_them(
    told: str, rank_0: list[Did], rank_1: list[Did], tmp_path: Path
) -> None:
    found = parted(tmp_path, told, rank_0, rank_1)
    assert found is None or "should_stop" not in found.because


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """This process, taken for a rank."""
    directory = RunDir(path=tmp_path / "run").rank(0)
    make_private_dir(directory.path)
    found = Recorder(directory, 0, 1)
    monkeypatch.setattr(session.recorded, "rank", found)
    return found


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules that are called like the frameworks' own: a plain attribute, and the field of a dataclass."""
    lightning = ModuleType("lightning.pytorch.trainer.trainer")

    class Trainer:
        def __init__(self) -> None:
            self.should_stop = False

    @dataclasses.dataclass
    class TrainerControl:
        should_training_stop: bool = False
        should_save: bool = False

    lightning.Trainer = Trainer  # type: ignore[attr-defined]
    transformers = ModuleType("transformers.trainer_callback")
    transformers.TrainerControl = TrainerControl  # type: ignore[attr-defined]
    for module in (lightning, transformers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Trainer, TrainerControl


def test_the_line_of_the_users_that_sets_the_flag_is_noted_once_and_values_are_as_without_us(
    framework: Any, rank: Recorder
) -> None:
    from nsadiag.worker.probes.training.stop_flags import stops

    trainer_type, control_type = framework
    with stops():
        trainer, control = trainer_type(), control_type(should_save=True)
        assert (trainer.should_stop, control.should_training_stop) == (False, False)
        trainer.should_stop = True
        trainer.should_stop = True
        control.should_training_stop = True
        same = copy.deepcopy(control)
        assert dataclasses.asdict(same) == {"should_training_stop": True, "should_save": True}
        assert control_type.should_training_stop is False
    assert "should_stop" not in vars(trainer_type)
    assert vars(control_type)["should_training_stop"] is False
    assert (trainer.should_stop, control.should_training_stop) == (True, True)
    recording = read_blackbox(rank.directory.blackbox)
    names = recording.names
    set_at = [
        (names[int(e["name"])], names[int(e["c"])].split(":")[0].strip())
        for e in recording.events
        if e["kind"] == Kind.STOP
    ]
    assert set_at == [("should_stop", __file__), ("should_training_stop", __file__)]
