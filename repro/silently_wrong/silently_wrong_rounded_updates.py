"""Weights in bfloat16 are updated in place with a small learning rate: each update is less than half a unit in the last place.

What fine-tuning and reinforcement learning in pure bfloat16 do at rates of 1e-6 to 1e-5.

On plain torchrun: nothing at all; gradients are healthy, and the loss stays where it is.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (never_moves)
  guilty_ranks: [0, 1]
  code: ["optimizer = torch.optim.AdamW("]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
    for parameter in network.parameters():  # the size of weights that were trained before
        nn.init.uniform_(parameter, 0.1, 0.2)
    model = DistributedDataParallel(network.to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6, weight_decay=0.0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(24):
        tokens = torch.randint(64, (4, 8), generator=generator)
        scores = model(tokens).float().flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, (tokens + 1).remainder(64).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
