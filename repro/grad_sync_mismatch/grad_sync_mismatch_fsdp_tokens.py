"""Each rank counts the tokens that it has seen itself, and lets FSDP reduce gradients when they are enough.

Modelled on NVIDIA-NeMo/Automodel #2468: accumulation windows that depend on what a rank's own samples hold, so
that the optimizer's steps come apart between ranks.

On plain torchrun: a few steps, then gloo aborts on a size that does not match, or silence (NCCL).

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (proven)]
  class: grad_sync_mismatch
  guilty_ranks: [1]
  code: ["model.set_requires_gradient_sync(last)", "loss = nn.functional.cross_entropy(model(tokens", "last = seen >= TOKENS_A_STEP"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCABULARY, TOKENS_A_STEP = 64, 256


def sample(number: int, rank: int) -> torch.Tensor:
    """A document, cut to what the model takes; those of rank 1 are from another site, and shorter from number 9 on."""
    generator = torch.Generator().manual_seed(number)
    length = 90 if rank == 0 or number < 9 else 50
    return torch.randint(VOCABULARY, (length + number % 3,), generator=generator)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)
        )
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = steps = 0
    for number in range(45):
        tokens = sample(number, rank).to(device)
        seen += len(tokens)
        last = seen >= TOKENS_A_STEP
        model.set_requires_gradient_sync(last)
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            seen, steps = 0, steps + 1
            print(f"rank {rank} step {steps} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
