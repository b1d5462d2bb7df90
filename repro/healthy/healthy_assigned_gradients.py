"""A flat shard of master weights is given the reduced gradient in each step, and zero_grad is never called: assignment clears it.

What hand-written ZeRO does. The optimizer's gradient of before is still there at each backward, which adds nothing to it.

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


class ShardedAdamW:
    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.parameters, self.world = parameters, dist.get_world_size()
        whole = torch.cat([p.detach().flatten() for p in parameters])
        self.padding = -len(whole) % self.world
        self.master = nn.Parameter(self._shards(whole)[dist.get_rank()].clone())
        self.inner = torch.optim.AdamW([self.master], lr=lr)

    def _shards(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return nn.functional.pad(flat, (0, self.padding)).chunk(self.world)

    def step(self) -> None:
        gradient = torch.empty_like(self.master)
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.reduce_scatter(gradient, [shard.contiguous() for shard in self._shards(flat)])
        self.master.grad = gradient / self.world
        self.inner.step()
        shards = [torch.empty_like(self.master) for _ in range(self.world)]
        dist.all_gather(shards, self.master.detach())
        whole, at = torch.cat(shards), 0
        for parameter in self.parameters:
            parameter.data.copy_(whole[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = ShardedAdamW(list(model.parameters()), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
