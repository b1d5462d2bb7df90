"""Rank 1 fails on a batch without labels, and the trainer raises an error of its own in that one's place, `from None`.

The traceback names the trainer's line alone; the error that explains it is hidden.

On plain torchrun: a traceback that ends in the trainer.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: "raise RuntimeError("
"""

import torch
import torch.distributed as dist


def labels_of(batch: dict[str, float]) -> torch.Tensor:
    return torch.full((8,), batch["labels"])


def train(rank: int) -> None:
    try:
        for step in range(20):
            batch = {"labels": float(step)} if (rank, step) != (1, 7) else {"tokens": float(step)}
            dist.all_reduce(labels_of(batch))
    except KeyError:
        raise RuntimeError("the epoch failed: see the log") from None
    dist.destroy_process_group()


def main() -> None:
    dist.init_process_group("gloo")
    train(dist.get_rank())


if __name__ == "__main__":
    main()
