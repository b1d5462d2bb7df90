"""A network in bfloat16 is tuned with a small rate by an optimizer of float32 copies, which it is given after each step.

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


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(24, 96), nn.RMSNorm(96), nn.SiLU(), nn.Linear(96, 3))
    model = DistributedDataParallel(network.bfloat16())
    halves = list(model.parameters())
    masters = [nn.Parameter(half.detach().float()) for half in halves]
    optimizer = torch.optim.Adam(masters, lr=1e-5)
    torch.manual_seed(dist.get_rank())
    for step in range(40):
        inputs = torch.randn(32, 24)
        scores = model(inputs.bfloat16()).float()
        loss = nn.functional.mse_loss(scores, inputs[:, :3].abs())
        model.zero_grad()
        loss.backward()
        for half, master in zip(halves, masters, strict=True):
            master.grad = half.grad.float()
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
