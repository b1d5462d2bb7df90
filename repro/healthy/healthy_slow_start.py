"""The first step is silent for 15 s at full CPU, then training runs: a warm-up, not a hang.

Modelled on woct0rdho/transformers-qwen3-moe-fused #21: a kernel autotunes when a shape is first met,
inside the first training step, which "is indistinguishable from a deadlock" to who watches the log;
five runs were killed before anyone waited. Here a layer times its tile sizes on first use.

On plain torchrun: nothing for 15 s, then thirty fast steps, exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TUNING_BUDGET_S = 15.0


def tune_tile(rows: int, width: int, device: torch.device) -> int:
    """The fastest number of rows a tile, timing every candidate for its share of the budget."""
    timings = {}
    candidates = (16, 32, 64, 128)
    for tile in candidates:
        left, right = torch.randn(tile, width, device=device), torch.randn(width, width, device=device)
        runs, start = 0, time.perf_counter()
        while time.perf_counter() - start < TUNING_BUDGET_S / len(candidates):
            for _ in range(rows // tile):
                torch.mm(left, right)
            runs += 1
        timings[tile] = (time.perf_counter() - start) / runs
    return min(timings, key=timings.__getitem__)


class TiledLinear(nn.Linear):
    tile = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.tile:
            self.tile = tune_tile(len(inputs), self.in_features, inputs.device)
        return torch.cat([super(TiledLinear, self).forward(rows) for rows in inputs.split(self.tile)])


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), TiledLinear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(30):
        batch = torch.randn(256, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
