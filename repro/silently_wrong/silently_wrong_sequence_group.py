"""The sequence is split over all ranks, and DDP is given the data-parallel group, which then has one member: nothing is reduced.

Modelled on ByteDance-Seed/VeOmni#1059. Keys and values are exchanged in each forward, gradients never.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (unexchanged_gradients)
  guilty_ranks: [0, 1]
  code: ["model = DistributedDataParallel("]
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as exchanges
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH = 40, 16, 16


class Model(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.embedding, self.group = nn.Embedding(VOCABULARY, WIDTH), group
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(exchanges.all_gather(part.contiguous(), group=self.group), 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        keys, values = self.gathered(self.key(hidden)), self.gathered(self.value(hidden))
        return self.head(
            hidden + nn.functional.scaled_dot_product_attention(self.query(hidden), keys, values)
        )


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "sequence"))
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Model(mesh["sequence"].get_group()), process_group=mesh["data"].get_group()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7)
    for step in range(20):
        batch = torch.randint(VOCABULARY, (4, LENGTH + 1), generator=generator)
        tokens, labels = batch[:, :-1].chunk(world, 1)[rank], batch[:, 1:].chunk(world, 1)[rank]
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
