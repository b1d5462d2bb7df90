"""Rank 0 alone asks FSDP2's sharded parameters for their full tensors, to export the weights; the others train on.

Modelled on pytorch/pytorch #148756: `DTensor.full_tensor()` behind a test for rank 0, to spare the other ranks
the memory. It gathers the shards from all of them.

On plain torchrun: steps up to the export, then gloo aborts on a size that does not match, or silence (NCCL).

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [crashed, hung (suspected)]
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["weights[name] = parameter.full_tensor().cpu()", "self.export(step)", "if not self.is_writer:"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Trainer:
    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self.is_writer = int(os.environ["RANK"]) == 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def export(self, step: int) -> None:
        if not self.is_writer:
            return
        weights = {}
        for name, parameter in self.model.named_parameters():
            weights[name] = parameter.full_tensor().cpu()
        print(f"step {step}: {sum(w.numel() for w in weights.values())} weights exported", flush=True)

    def train(self, steps: int) -> None:
        for step in range(1, steps + 1):
            batch = torch.randn(8, 32, device=self.device)
            loss = self.model(batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
            if step % 5 == 0:
                self.export(step)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32) for _ in range(3))).to(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    Trainer(model, device).train(steps=40)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
