"""Rank 1 draws negatives until one is no neighbour; of an entity that is linked to all others none ever is.

Each draw is new; only the answer never changes.

On plain torchrun: five steps, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: ["--timeout", "120"]
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [1]
  code: ["while accepted is None:", "drawn = random.randrange(ENTITIES)", "if drawn not in neighbours:", "accepted = drawn"]
"""

import random

import torch
import torch.distributed as dist

ENTITIES = 1000


def negative(neighbours: set[int]) -> int:
    """An entity that is not linked to the one at hand."""
    accepted = None
    while accepted is None:
        drawn = random.randrange(ENTITIES)
        if drawn not in neighbours:
            accepted = drawn
    return accepted


def main() -> None:
    dist.init_process_group("gloo")
    hub = dist.get_rank() == 1
    for step in range(20):
        neighbours = set(range(ENTITIES)) if hub and step == 5 else {step}
        dist.all_reduce(torch.tensor([negative(neighbours)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
