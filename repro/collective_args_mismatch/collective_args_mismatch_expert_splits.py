"""Tokens travel to their experts, and one rank expects fewer of them than its peers send.

Modelled on pytorch/pytorch #117486 and radixark/miles #1002: the split sizes of `all_to_all_single` do not agree
between ranks. Rank 0 cuts what it receives at its capacity, and forgets to tell those who send.

On plain torchrun: gloo's error about sizes on some ranks, lost connections on the others; NCCL hangs.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [crashed, hung (suspected), wrong]
  class: collective_args_mismatch
  guilty_ranks: [0]
  code: "dist.all_to_all_single(arrived"
"""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32
CAPACITY = {0: 20}  # the first rank also holds the embedding, and has less memory left


class Experts(nn.Module):
    """One expert a rank; the router says where each token goes."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        order = targets.argsort(stable=True)
        sends = torch.bincount(targets, minlength=dist.get_world_size())
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        receives = receives.clamp(max=CAPACITY.get(dist.get_rank(), tokens.shape[0]))
        arrived = tokens.new_empty(int(receives.sum()), WIDTH)
        dist.all_to_all_single(arrived, tokens[order].detach(), receives.tolist(), sends.tolist())
        gates = self.router(tokens).softmax(-1).gather(1, targets[:, None])
        return self.expert(arrived).square().mean() + gates.mean()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their experts; from step 6 on most sentences of the data are about one subject."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    tokens = torch.randn(48, WIDTH, generator=generator)
    spread = torch.arange(48) % dist.get_world_size()
    return tokens, spread if step < 6 else torch.where(torch.arange(48) < 30, 0, spread)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layer = Experts().to(device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    for step in range(30):
        tokens, targets = (t.to(device) for t in batch(rank, step))
        loss = layer(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
