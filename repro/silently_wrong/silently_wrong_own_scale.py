"""Each rank owns the optimizer of a part of the model, with a gradient scaler that sees that part alone: one halves its scale by itself.

What sharded optimizers met before ShardedGradScaler. From there on rank 1's loss has half the weight in the average.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (other_scale)
  guilty_ranks: [0, 1]
  code: ["scaler.step(optimizer)"]
"""

import torch
import torch.distributed as dist
from torch import nn

OVERFLOW = 8


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters[rank::world], lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        points = torch.randn(16, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        model.zero_grad()
        scaler.scale(loss).backward()
        if step == OVERFLOW:  # as in half precision, in the last layer's bias
            parameters[-1].grad[0] = float("inf")
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        scaler.step(optimizer)
        scaler.update()
        for number, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, src=number % world)
        print(f"rank {rank} step {step} scale {scaler.get_scale():g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
