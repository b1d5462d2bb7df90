"""Four ranks pass blocks around a ring; rank 0's file is shorter, so that it leaves the ring for the barrier after it.

On plain torchrun: five rounds, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [0]
  code: "dist.barrier()"
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lengths = [5, 8, 8, 8]
    blocks = torch.randn(lengths[rank], 1 << 12)
    for block in blocks:
        received = torch.empty_like(block)
        sending = dist.isend(block, dst=(rank + 1) % world)
        dist.recv(received, src=(rank - 1) % world)
        sending.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
