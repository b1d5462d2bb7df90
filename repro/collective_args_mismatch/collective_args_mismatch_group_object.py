"""Each rank reduces the losses of its own batches on the group object itself; rank 1 has a batch more, so its tensor is longer.

Calls on a group object go past torch.distributed. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares them, and raises on both.

On plain torchrun: "Detected mismatch between collectives on ranks", on each rank, with the two shapes and no line to change.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: collective_args_mismatch
  guilty_ranks: [0, 1]
  code: ["group.allreduce([losses]).wait()"]
"""

import os

import torch
import torch.distributed as dist

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
ROWS = 40


def shared_losses(
    model: torch.nn.Module, batches: tuple[torch.Tensor, ...], group: dist.ProcessGroup
) -> torch.Tensor:
    losses = torch.stack([model(batch).square().mean() for batch in batches]).detach()
    group.allreduce([losses]).wait()
    return losses / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    torch.manual_seed(0)
    rows = torch.randn(ROWS + 8 * dist.get_rank(), 4)
    print(shared_losses(torch.nn.Linear(4, 1), rows.split(8), group))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
