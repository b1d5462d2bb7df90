"""Experts on four ranks, and nearly all tokens want the same one: splits differ, some are zero, all of them agree.

Modelled on databricks/megablocks #100: with expert parallelism uneven routing sends everything to one rank. The
counts are exchanged first, so every size differs between the ranks and every pair of sizes fits.

On plain torchrun: thirty steps, rank 2 busier than its peers; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


class ExpertLayer(nn.Module):
    """One expert a rank; each token goes to the one its router likes best."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.router(tokens).softmax(-1)
        gate, choice = scores.max(-1)
        order = choice.argsort()
        sent = torch.bincount(choice, minlength=scores.shape[-1])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        to, back = sent.tolist(), received.tolist()
        arrived = all_to_all_single(tokens.new_empty(sum(back), tokens.shape[-1]), tokens[order], back, to)
        answered = self.expert(arrived)
        mine = all_to_all_single(torch.empty_like(tokens), answered, to, back)
        return tokens + gate.unsqueeze(-1) * mine[order.argsort()]


def average_shared_gradients(layer: ExpertLayer) -> None:
    for parameter in layer.router.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer = ExpertLayer(32, world).to(device)
    with torch.no_grad():
        layer.router.bias[2] += 3.0
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(30):
        tokens = torch.randn(100 + 40 * rank, 32, device=device)
        loss = (layer(tokens) - tokens.roll(1, -1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average_shared_gradients(layer)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
