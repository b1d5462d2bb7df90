"""Each rank evaluates a shard of its own through a loader that the framework did not make, and rank 1's is shorter.

Modelled on subclasses of transformers' Trainer with a `get_eval_dataloader` of their own: nothing evens out the data
then, and the framework's loop, which gathers each batch's predictions, comes to its end on one rank first.

On plain torchrun: "evaluated" from nobody, silence until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: uneven_inputs
  guilty_ranks: [1]
  code: "trainer.evaluate()"
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

ROWS = (48, 36)  # of each rank's shard
BATCH = 4


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 16, generator=generator)
    return [{"x": x, "labels": (x.sum() > 0).long()} for x in inputs]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class ShardTrainer(Trainer):
    def get_eval_dataloader(self, *_: object) -> DataLoader:
        return DataLoader(rows(ROWS[dist.get_rank()]), batch_size=BATCH)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": 6, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(folder, use_cpu=not torch.cuda.is_available(), **options)
        trainer = ShardTrainer(Classifier(), arguments, train_dataset=rows(96))
        trainer.train()
        print(f"rank {dist.get_rank()}: evaluated, {trainer.evaluate()}", flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()
