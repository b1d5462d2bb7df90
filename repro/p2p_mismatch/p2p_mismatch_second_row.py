"""Rank 2 refines its part of a grid and asks its left neighbour for a second row, which no neighbour sends.

Modelled on exchanges of halos under adaptive refinement. The next sweep's row comes in place of the second one, so that it
goes well for a while.

On plain torchrun: some 25 sweeps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [2]
  code: ["dist.recv(second, left)", "if self.refined:", "self.fetch_second_row("]
"""

import torch
import torch.distributed as dist

WIDTH = 128


class Strip:
    """Some rows of a grid, and the rows of the neighbours above and below."""

    def __init__(self, rank: int, world: int) -> None:
        self.left, self.right = (rank - 1) % world, (rank + 1) % world
        self.rows = torch.full((8, WIDTH), float(rank))
        self.above, self.below = torch.empty(WIDTH), torch.empty(WIDTH)
        self.refined = False

    def exchange(self) -> None:
        sends = [dist.isend(self.rows[-1].clone(), self.right), dist.isend(self.rows[0].clone(), self.left)]
        dist.recv(self.above, self.left)
        dist.recv(self.below, self.right)
        if self.refined:
            self.fetch_second_row(self.left)
        for send in sends:
            send.wait()

    def fetch_second_row(self, left: int) -> None:
        second = torch.empty(WIDTH)
        dist.recv(second, left)
        self.above = (self.above + second) / 2

    def relax(self) -> None:
        padded = torch.cat([self.above[None], self.rows, self.below[None]])
        self.rows = (padded[:-2] + padded[2:]) / 2


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    strip = Strip(rank, dist.get_world_size())
    for sweep in range(200):
        strip.refined = rank == 2 and sweep >= 25
        strip.exchange()
        strip.relax()
        if sweep % 10 == 0:
            energy = strip.rows.square().sum()
            dist.all_reduce(energy)
            print(f"rank {rank} sweep {sweep} energy {float(energy):.3f}", flush=True)


if __name__ == "__main__":
    main()
