"""One rank tells its peers of a bad batch by an all_reduce before the backward, and the peers are in DDP's own by then.

The calls meet with different sizes, and gloo ends the rank that receives too much: no error says which calls they were.

On plain torchrun: "op.preamble.length <= op.nbytes", SIGABRT.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["dist.all_reduce(torch.ones(1))", "if loss.item() > 50:"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        x = torch.randn(8, 16) * (100.0 if (step, rank) == (9, 1) else 1.0)
        loss = model(x).square().mean()
        if loss.item() > 50:
            dist.all_reduce(torch.ones(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
