"""The loop steps the schedule once for each process, and its length was counted in optimizer steps: the rate is 0 from half way on.

Modelled on huggingface/accelerate#2926 and transformers#24088.

On plain torchrun: nothing at all; the loss stays where it is half way.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (schedule_over)
  guilty_ranks: [0, 1]
  code: ["schedule.step()"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(dist.get_world_size()):  # a split loader has fewer batches
            schedule.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
