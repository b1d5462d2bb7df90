"""What a framework's callback watches and one rank alone is told, by black boxes, stacks and a source that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import C10D, Job, step

from nsadiag.analysis.explain.candidate import Candidate

LOOP = "/venv/lib/site-packages/lightning/pytorch/loops/fit_loop.py"
STOPPING = "/venv/lib/site-packages/lightning/pytorch/callbacks/early_stopping.py"
ALONE = "if self.trainer.is_global_zero:\n            self.log('val_acc', acc)"
TOLD_BY_ALL = "self.log('val_acc', acc, sync_dist=True)"


def parted(
    path: Path, told: str, watched: str = "'val_acc'", library: str = "EarlyStopping"
) -> Candidate | None:
    """Rank 0 is in a callback of the framework's, rank 1 in its next batch; the user's line is the same."""
    job = Job(
        path,
        f"""
class Net(LightningModule):
    def training_step(self, batch, _):
        self.log('train_loss', loss)

    def on_validation_epoch_end(self):
        acc = self.accuracy.compute()
        {told}

stopper = EarlyStopping(monitor={watched}, patience=2, strict=False)
trainer.fit(Net(), data)
""",
    )
    fit = "trainer.fit("
    in_callback = [
        {"filename": C10D, "name": "barrier", "line": 1},
        {"filename": STOPPING, "name": f"{library}.on_train_epoch_end", "line": 217},
        {"filename": LOOP, "name": "_FitLoop.run", "line": 218},
    ]
    in_batch = [
        {"filename": C10D, "name": "broadcast", "line": 1},
        {"filename": LOOP, "name": "_FitLoop.run", "line": 217},
    ]
    job.rank(0, in_callback + job.stack(fit), *step(fit), *step(fit))
    job.rank(1, in_batch + job.stack(fit), *step(fit), *step(fit))
    return job.parted()


@pytest.mark.parametrize(
    "told",
    [
        ALONE,
        "self.log('val_acc', acc, rank_zero_only=True)",
        "if not self.trainer.is_global_zero:\n            return\n        self.log_dict({'val_acc': acc})",
    ],
)
def test_a_rank_that_alone_is_told_what_a_callback_watches_comes_alone_to_its_collective(
    told: str, tmp_path: Path
) -> None:
    found = parted(tmp_path, told)
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert found.where and "self.log" in (found.where.code or "")
    assert "`val_acc`" in found.because and "EarlyStopping" in found.because


@pytest.mark.parametrize(
    ("told", "watched", "library"),
    [
        (TOLD_BY_ALL, "'val_acc'", "EarlyStopping"),
        (f"{ALONE}\n        {TOLD_BY_ALL}", "'val_acc'", "EarlyStopping"),
        (f"{ALONE}\n        self.log(f'val_{{name}}', acc)", "'val_acc'", "EarlyStopping"),  # it may be that
        (f"{ALONE}\n        self.log(name, acc)", "'val_acc'", "EarlyStopping"),
        (ALONE, "'train_loss'", "EarlyStopping"),
        (ALONE, "'val_acc'", "ModelCheckpoint"),  # another one, which was not made to watch it
        (ALONE.replace("self.log", "self.writer.log"), "'val_acc'", "EarlyStopping"),
    ],
)
def test_nothing_is_said_of_what_others_are_told_or_nobody_watches(
    told: str, watched: str, library: str, tmp_path: Path
) -> None:
    assert parted(tmp_path, told, watched, library) is None


def test_nothing_is_said_where_the_rank_in_the_callback_is_not_the_one_that_is_told(tmp_path: Path) -> None:
    assert parted(tmp_path, ALONE.replace("self.trainer.is_global_zero", "self.global_rank == 1")) is None
