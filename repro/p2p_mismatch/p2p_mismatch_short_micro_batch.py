"""The last micro-batch is shorter than the others, and the second stage receives it into a tensor of the usual size.

On plain torchrun: gloo ends rank 1 for the size, or the message is taken for a whole one.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: p2p_mismatch
  guilty_ranks: [1]
  code: "dist.recv(activations, src=0)"
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows, micro = 44, 16
    for _step in range(3):
        for start in range(0, rows, micro):
            if rank == 0:
                activations = torch.randn(min(micro, rows - start), 32)
                dist.send(activations, dst=1)
            else:
                activations = torch.empty(8, 32)
                dist.recv(activations, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
