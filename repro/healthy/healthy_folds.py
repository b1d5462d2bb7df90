"""Cross-validation trains one model after the other in one process, and keeps them all.

Modules of the finished model have the names of those that are trained now, and still have the gradients of their last step:
the optimizer of the last fold is right not to hold them.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

FOLDS = 2


def main() -> None:
    dist.init_process_group("gloo")
    finished = []
    for fold in range(FOLDS):
        torch.manual_seed(fold)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        torch.manual_seed(100 * fold + dist.get_rank())
        for _ in range(20):
            x = torch.randn(16, 16)
            optimizer.zero_grad()
            cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
        finished.append(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
