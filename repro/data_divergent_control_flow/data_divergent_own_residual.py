"""Each rank stops its conjugate gradients by the residual of its own rows, and the others go on to the next dot product.

Modelled on solvers whose stopping criterion is tested before the norm is reduced. There is no model, and no step of an optimizer.

On plain torchrun: five systems, then silence until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["if residual.norm() < TOLERANCE:"]
"""

import torch
import torch.distributed as dist

TOLERANCE = 1e-4
ROWS = 64


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = (a * b).sum()
    dist.all_reduce(total)
    return total


def solve(diagonal: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A diagonal system: each rank holds its own rows, and dot products are of all."""
    x, residual = torch.zeros_like(right), right.clone()
    direction, rho = residual.clone(), dot(residual, residual)
    while True:
        if residual.norm() < TOLERANCE:
            return x
        image = diagonal * direction
        alpha = rho / dot(direction, image)
        x += alpha * direction
        residual -= alpha * image
        before, rho = rho, dot(residual, residual)
        direction = residual + rho / before * direction


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    for system in range(20):
        # From the sixth system on there is next to nothing to solve in the second half.
        right = torch.ones(ROWS) * (1e-5 if system >= 5 and rank == 1 else 1.0)
        x = solve(1.0 + torch.linspace(0, 9, ROWS), right)
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        print(f"rank {rank} system {system} sum {sum(p.sum() for p in parts):.4f}", flush=True)


if __name__ == "__main__":
    main()
