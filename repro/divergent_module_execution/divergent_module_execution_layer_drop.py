"""Each rank draws for itself which layers it drops, and FSDP gathers the weights of those that run.

Modelled on facebookresearch/fairscale #796: layer drop over layers that are units of FSDP hangs the training.
The ranks draw from generators that were seeded by rank.

On plain torchrun: a step or two, then silence until gloo's timeout, or a size that does not match.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung (suspected), crashed]
  class: divergent_module_execution
  guilty_ranks: [2]
  code: ["if self.training and self.dropped(number):", "x = layer(x)", "loss.backward()", "model(batch)"]
"""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Layer(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.Linear(hidden, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Encoder(nn.Module):
    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(48, 64 + 32 * i) for i in range(6))
        self.probability, self.random = probability, random.Random(seed)

    def dropped(self, number: int) -> bool:
        return self.random.random() < self.probability and number > 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if self.training and self.dropped(number):
                continue
            x = layer(x)
        return x


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    # The workers' seeds: the third one was restarted with another.
    encoder = Encoder(probability=0.1, seed=1 if rank != 2 else 5).to(device)
    model = FSDP(encoder, auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=device, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(30):
        batch = torch.randn(16, 48, device=device)
        loss = nn.functional.mse_loss(model(batch), batch.roll(1, dims=0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
