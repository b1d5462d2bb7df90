"""Tensor x data parallel: after a warm-up each rank runs its synchronisations in the order that was fastest for it.

Modelled on meta-pytorch/torchrec #4149 and NVIDIA/Megatron-LM #107: two groups, and the order in which their
collectives are issued differs by rank. Each wait is harmless by itself; together they close a cycle.

On plain torchrun: silence after step 4; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: collective_order_mismatch
  guilty_ranks: [1]
  code: ["for name in self.order:", "dist.all_reduce(self.norm)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

WARM_UP = 5
# Milliseconds as measured in the warm-up: on one machine the pair's link is the slow one.
MEASURED = {1: {"outputs": 3.1, "norm": 0.4}}
USUAL = {"outputs": 0.2, "norm": 0.9}


class Trainer:
    def __init__(self, model: nn.Module, mesh: DeviceMesh):
        self.model, self.tp, self.dp = model, mesh["tp"].get_group(), mesh["dp"].get_group()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.order = ["outputs", "norm"]

    def tune(self) -> None:
        cost = MEASURED.get(dist.get_rank(), USUAL)
        self.order.sort(key=lambda name: cost[name])

    def sync_outputs(self) -> None:
        dist.all_reduce(self.out, group=self.tp)

    def sync_norm(self) -> None:
        self.norm = torch.stack([p.grad.square().sum() for p in self.model.parameters()]).sum()
        dist.all_reduce(self.norm)

    def step(self, x: torch.Tensor) -> float:
        out = self.model(x)
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.out = out.detach()
        for name in self.order:
            getattr(self, f"sync_{name}")()
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.dp)
        self.optimizer.step()
        return loss.item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    trainer = Trainer(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device), mesh)
    generator = torch.Generator().manual_seed(rank // 2)
    for step in range(20):
        if step == WARM_UP:
            trainer.tune()
        loss = trainer.step(torch.randn(32, 32, generator=generator).to(device))
        print(f"rank {rank} step {step} loss {loss:.4f} norm {trainer.norm.sqrt().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
