"""Callbacks and trackers, each as a user writes it, with the real library; what is not installed is skipped by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.recordings.golden import archive_of, unpack

import nsadiag
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.reports.formats.registry import write_reports

TRANSFORMERS = """
import sys, torch
from transformers import Trainer, TrainingArguments
from nsadiag.integrations.transformers import NsadiagCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}

data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(32)]
arguments = TrainingArguments("out", max_steps=6, eval_strategy="steps", eval_steps=2, save_steps=3, report_to=[],
                              use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4)
trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data[:4],
                  callbacks=[NsadiagCallback(out="run")])
trainer.train()
print("LOGGED", trainer.state.log_history[-1])
"""
LIGHTNING = """
import torch, lightning as L
from lightning.pytorch.loggers import CSVLogger
from nsadiag.integrations.lightning import NsadiagCallback

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _):
        self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=CSVLogger("logs"), enable_progress_bar=False,
                    callbacks=[NsadiagCallback(out="run")], enable_checkpointing=False)
trainer.fit(Model(), loader, loader)
print("LOGGED", open(trainer.logger.log_dir + "/metrics.csv").read())
"""
ACCELERATE = """
import json, torch, nsadiag
from accelerate import Accelerator
from nsadiag.integrations import metrics_of

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
with nsadiag.watch(model, out="run") as run:
    for step in range(4):
        with nsadiag.phase("train"):
            accelerator.backward(model(torch.randn(2, 4)).square().mean())
            optimizer.step()
    with nsadiag.phase("evaluate"), torch.no_grad():
        model(torch.randn(2, 4))
print("LOGGED", json.dumps(metrics_of(run.verdict)))
"""


def phases_of(directory: Path) -> set[str]:
    events = nsadiag.load(directory).events
    return set(events.loc[events.kind == Kind.PHASE, "name"])


@pytest.mark.parametrize(
    ("library", "source", "phases"),
    [
        ("transformers", TRANSFORMERS, {"train", "evaluate", "save"}),
        pytest.param("lightning", LIGHTNING, {"train", "validate"}, marks=pytest.mark.slow),
        ("accelerate", ACCELERATE, {"train", "evaluate"}),
    ],
)
def test_a_training_names_its_phases_and_logs_its_verdict(
    jobs: Jobs, library: str, source: str, phases: set[str]
) -> None:
    pytest.importorskip(library)
    (jobs.directory / "train.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=jobs.directory,
        env=jobs.environment(None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = nsadiag.load(jobs.directory / "run")
    assert run.verdict is not None and run.verdict.outcome == "healthy"
    assert phases_of(jobs.directory / "run") == phases
    assert "nsadiag/finding" in done.stdout.partition("LOGGED")[2]


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """A recorded hang with its verdict and page."""
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path / "hung")
    write_json(run.verdict, judge_directory(run.path).to_json())
    write_reports(run.path)
    return run.path


def test_wandb_gets_verdict_steps_and_page_without_a_network(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    from nsadiag.integrations.trackers import log_to_wandb

    log_to_wandb(hung)
    wandb.teardown()  # its service writes on after the run is finished
    (history,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written = history.read_bytes()
    for words in (
        b"local_lock_deadlock",
        b"nsadiag/step_s/rank_1",
        b"nsadiag/peer_wait_s/rank_1",
        b"report.html",
    ):
        assert words in written


def test_mlflow_gets_verdict_steps_and_page_without_a_network(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    from nsadiag.integrations.trackers import log_to_mlflow

    log_to_mlflow(hung)
    (run,) = mlflow.search_runs(output_format="list", search_all_experiments=True)
    assert run.data.tags["nsadiag.class"] == "local_lock_deadlock"
    assert run.data.tags["nsadiag.guilty_ranks"] == "1"
    assert run.data.metrics["nsadiag/finding"] == 1.0 and "nsadiag/step_s/rank_0" in run.data.metrics
    assert [each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id)] == ["report.html"]


def test_tensorboard_gets_verdict_steps_and_page(hung: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from nsadiag.integrations.trackers import log_to_tensorboard

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        log_to_tensorboard(hung, writer)
    found = EventAccumulator(str(tmp_path / "logs"))
    found.Reload()
    assert (
        "nsadiag/step_s/rank_1" in found.Tags()["scalars"]
        and "nsadiag/text_summary" in found.Tags()["tensors"]
    )
    assert "<svg" in (tmp_path / "logs" / "nsadiag-report.html").read_text()


@pytest.mark.slow
def test_a_callback_under_nsadiag_run_names_phases_and_starts_no_second_watch(jobs: Jobs) -> None:
    pytest.importorskip("transformers")
    (jobs.directory / "train.py").write_text(TRANSFORMERS)
    done = jobs.run("run", "--out", "mine", "--json", "--", sys.executable, "train.py", seconds=600)
    assert json.loads(done.stdout)["verdict"]["outcome"] == "healthy", done.stderr
    assert phases_of(jobs.directory / "mine") == {"train", "evaluate", "save"}
    assert not (jobs.directory / "run").exists()
