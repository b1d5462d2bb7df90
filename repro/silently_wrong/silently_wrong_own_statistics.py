"""DDP is told not to broadcast buffers, and every rank evaluates with running statistics of its own.

As in facebookresearch/detectron2#1015.

On plain torchrun: nothing at all; the ranks report other accuracies for one model.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (own_statistics)
  guilty_ranks: [0, 1]
  code: "right = (model(held_out).argmax(1) == held_out[:, :4].argmax(1)).float().mean()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    model = DistributedDataParallel(network, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held_out = torch.randn(64, 16, generator=torch.Generator().manual_seed(9)) * 3 + 1
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(24):
        points = torch.randn(32, 16, generator=generator) * 3 + 1
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                right = (model(held_out).argmax(1) == held_out[:, :4].argmax(1)).float().mean()
            model.train()
            print(f"step {step} loss {loss.item():.4f} accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
