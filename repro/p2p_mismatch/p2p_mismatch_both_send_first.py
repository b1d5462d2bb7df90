"""Neighbours exchange the edges of their tiles, and both send before they receive: nobody is there to take it.

Modelled on NVIDIA/nccl #479: a send may wait for its receive. With small edges it works, because they fit into
somebody's buffer; the level at which the tiles are large is the first that does not.

On plain torchrun: silence after the second level; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [0, 1]
  code: ["dist.send(edge.contiguous(), neighbour)", "dist.recv(theirs, neighbour)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn

LEVELS = (64, 256, 4096)  # tiles grow from coarse to fine


def swap_edges(tile: torch.Tensor, neighbour: int) -> torch.Tensor:
    """The neighbour's edge: its last row if it lies above, its first if it lies below."""
    edge = tile[:, :, -1] if neighbour > dist.get_rank() else tile[:, :, 0]
    theirs = torch.empty_like(edge)
    dist.send(edge.contiguous(), neighbour)
    dist.recv(theirs, neighbour)
    return theirs


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, edge: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        return (self.conv(edge) - theirs).square().mean()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    neighbour = 1 - rank
    torch.manual_seed(0)
    model = Smoother().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for size in LEVELS:
        for step in range(4):
            tile = torch.randn(16, 8, 3, size * 8, generator=generator).to(device)
            theirs = swap_edges(tile, neighbour)
            loss = model(tile[:, :, 1], theirs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} tiles of {size} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
