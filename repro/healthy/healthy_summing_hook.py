"""A communication hook sums gradients, since each loss is a sum that is divided by the tokens of all ranks.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def summed(group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(32, 24), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
    model = DistributedDataParallel(network)
    model.register_comm_hook(None, summed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(rank)
    for _ in range(40):
        tokens = torch.randint(32, (8, 6 + 4 * rank))
        count = torch.tensor(float(tokens.numel()))
        dist.all_reduce(count)
        scores, targets = model(tokens).flatten(0, 1), (tokens + 1).remainder(32).flatten()
        loss = nn.functional.cross_entropy(scores, targets, reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
