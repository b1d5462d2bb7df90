"""The callback that the guide shows, in transformers' Trainer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide.md"
JOB = """
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}


rows = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(24)]
arguments = TrainingArguments("out", max_steps=6, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no")
trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[Watched()])
trainer.train()
print("logged:", [row["nsadiag"] for row in trainer.state.log_history if "nsadiag" in row], flush=True)
"""


def test_the_callback_of_the_guide_logs_the_verdict(jobs: Jobs) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    shown = [
        code
        for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        if "TrainerCallback" in code
    ]
    (jobs.directory / "job.py").write_text(shown[0] + JOB)
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=jobs.directory,
        env=jobs.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "logged: ['Completed: 6 steps on 1 rank" in done.stdout, done.stdout + done.stderr
