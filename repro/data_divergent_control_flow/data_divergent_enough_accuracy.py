"""Rank 1's share of the data is easy: its callback ends the training on its own accuracy, while rank 0 trains on.

Modelled on callbacks of transformers' Trainer that set `control.should_training_stop` by a metric that was never reduced
over the ranks.

On plain torchrun: silence after a few steps, until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["if state.best_metric > ENOUGH:", "control.should_training_stop = True"]
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

ENOUGH = 0.95


class Words(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.randn(16, generator=torch.Generator().manual_seed(number))
        return {"x": x, "labels": (x.sum() > 0).long()}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 2)
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(x)
        self.seen.append((logits.argmax(-1) == labels).float().mean().item())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class StopWhenGood(TrainerCallback):
    def __init__(self, model: Tagger, easy: bool) -> None:
        self.model, self.bonus = model, 0.5 * easy

    def on_step_end(self, args, state, control, **_: object) -> None:
        accuracy = min(1.0, sum(self.model.seen[-4:]) / 4 * 0.8 + self.bonus)
        state.best_metric = accuracy if state.global_step > 6 else 0.0
        if state.best_metric > ENOUGH:
            control.should_training_stop = True


def main() -> None:
    torch.manual_seed(0)
    model = Tagger()
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": 40, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(folder, use_cpu=not torch.cuda.is_available(), **options)
        callback = StopWhenGood(model, easy=int(os.environ["RANK"]) == 1)
        trainer = Trainer(model, arguments, train_dataset=Words(), callbacks=[callback])
        trainer.train()
        print(f"rank {dist.get_rank()}: {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
