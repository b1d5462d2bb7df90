"""DDP wraps the encoder alone, and the optimizer trains the head as well: nothing reduces the head's gradients.

On plain torchrun: nothing; rank 0's head is saved, the other is lost.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "encoder, head = DDP(net[0]), net[1]"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 4))
    encoder, head = DDP(net[0]), net[1]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for _step in range(24):
        loss = head(encoder(torch.randn(8, 16))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
