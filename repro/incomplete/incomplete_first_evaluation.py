"""Cut off in its first evaluation, on rank 0 alone: nobody can know yet whether that is as long as it is meant to be.

Modelled on jobs with a time limit that is shorter than their first validation. The training was fast, rank 1 has
waited in a barrier for half a minute, and rank 0 goes from batch to batch: no failure, and no steady rate either.

On plain torchrun: thirty steps, then silence for a minute or two, then more steps.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--timeout, "40"]
  outcome: incomplete
  class: incomplete
  guilty_ranks: [0]
  action: wait
  code: ["loss += nn.functional.mse_loss(model(batch), batch).item()", "batch = torch.randn(256", "for _ in range(BATCHES):"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES = 2000


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    loss = 0.0
    for _ in range(BATCHES):
        batch = torch.randn(256, 512)
        loss += nn.functional.mse_loss(model(batch), batch).item()
    return loss / BATCHES


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    own = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    model = DDP(own)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(90):
        batch = torch.randn(8, 512)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 30 == 29:
            if rank == 0:
                print(f"validation {evaluate(own):.4f}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
