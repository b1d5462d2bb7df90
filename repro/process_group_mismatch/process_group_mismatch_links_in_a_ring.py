"""Each rank creates the group of the link to its successor first, and then that to its predecessor.

With use_local_synchronization only the members of a group take part in its creation: three ranks wait in a ring.

On plain torchrun: nothing from the start on, until the store's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (suspected)
  class: process_group_mismatch
  guilty_ranks: [0, 1, 2]
  code: "groups = [dist.new_group(sorted(link), use_local_synchronization=True) for link in links]"
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    world = dist.get_world_size()
    links = [(rank, (rank + 1) % world), ((rank - 1) % world, rank)]
    groups = [dist.new_group(sorted(link), use_local_synchronization=True) for link in links]
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
