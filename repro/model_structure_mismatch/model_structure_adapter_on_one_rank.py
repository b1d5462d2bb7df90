"""Rank 3 of 4 finds a cached configuration that asks for an adapter; the other three build the model without.

Modelled on yifan123/flow_grpo #245 and NJU-PCALab/STAR #44: "DDP expects same model across all ranks, but Rank 0
has ... params, while rank ... has inconsistent ... params", because a rank read its settings from elsewhere.

On plain torchrun: DDP's error on rank 3, connection errors on the rest.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: crashed
  class: model_structure_mismatch
  guilty_ranks: [3]
  code: "model = DDP("
"""

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, dim: int, adapter: int):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.adapter = nn.Sequential(nn.Linear(dim, adapter), nn.Linear(adapter, dim)) if adapter else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mlp(self.norm(x))
        return x + y + (self.adapter(y) if self.adapter else 0.0)


def settings(node: Path) -> dict[str, int]:
    """What is cached on the node wins over the defaults."""
    cached = node / "model.json"
    return {"dim": 64, "layers": 3, "adapter": 0} | (
        json.loads(cached.read_text()) if cached.exists() else {}
    )


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    node = Path(tempfile.mkdtemp())
    if rank == 3:  # somebody tried adapters here last week
        (node / "model.json").write_text('{"adapter": 8}')
    config = settings(node)
    torch.manual_seed(0)
    blocks = [Block(config["dim"], config["adapter"]) for _ in range(config["layers"])]
    model = DDP(nn.Sequential(*blocks).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(16, config["dim"], device=device)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
