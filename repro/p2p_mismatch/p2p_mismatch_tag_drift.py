"""Three ranks pass their borders around a ring; the last one restarted from a later counter, so its tags change an iteration early.

Modelled on torchcomms #2964: tags that are counted on each rank, and do not count alike. Everyone is at the same line.

On plain torchrun: silence.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [2]
  code: ["dist.isend(border", "requests = [", "request.wait()"]
"""

import torch
import torch.distributed as dist


class Ring:
    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.right, self.left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self.restarted_at = 1 if self.rank == 2 else 0

    def exchange(self, border: torch.Tensor, iteration: int) -> torch.Tensor:
        count = iteration + self.restarted_at if iteration > 40 else iteration
        received = torch.empty_like(border)
        requests = [
            dist.isend(border, self.right, tag=count // 10),
            dist.irecv(received, self.left, tag=count // 10),
        ]
        for request in requests:
            request.wait()
        return received


def main() -> None:
    dist.init_process_group("gloo")
    ring = Ring()
    field = torch.zeros(66)
    for iteration in range(80):
        field[0] = ring.exchange(field[-2:-1].clone(), iteration)[0]
        field[1:-1] = 0.5 * (field[:-2] + field[2:])
        if ring.rank == 0 and iteration % 20 == 0:
            print(f"iteration {iteration} sum {field.sum().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
