"""The last norm works on a part of the sequence on each tensor-parallel rank, and nothing sums its gradient over them.

Modelled on NVIDIA/Megatron-LM#1446 (final_layernorm with tensor and sequence parallelism).

On plain torchrun: nothing at all; the copies of the norm drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (partial_gradients)
  guilty_ranks: [0, 1]
  code: ["return self.head(self.norm(part))"]
  parameter: "norm.weight"
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as exchanges
from torch import nn

WIDTH, HIDDEN = 16, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)
        self.up = nn.Parameter(up.weight.detach().chunk(world)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(world, 1)[rank].clone())

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        whole = torch.cat(exchanges.all_gather(part))
        sums = nn.functional.gelu(whole @ self.up.T) @ self.down.T
        shares = [share.contiguous() for share in sums.chunk(dist.get_world_size())]
        return part + exchanges.reduce_scatter(torch.empty_like(part), shares)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        part = self.blocks(part)
        return self.head(self.norm(part))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(20):
        tokens = torch.randn(24, WIDTH, generator=generator)
        part, labels = tokens.chunk(world)[rank], tokens[:, :4].argmax(1).chunk(world)[rank]
        loss = nn.functional.cross_entropy(model(part), labels)
        optimizer.zero_grad()
        (loss / world).backward()
        for parameter in model.head.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
