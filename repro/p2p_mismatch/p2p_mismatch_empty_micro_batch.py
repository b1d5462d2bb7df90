"""The first stage of a pipeline leaves out micro-batches that are all padding; the last stage still counts on four.

Modelled on packed fine-tuning in pipelines that split by samples: near the end of a shard a micro-batch has nothing
left in it, one stage skips it, and from there on each message is taken for the one before. Nothing hangs until the
first stage has run out of steps: then the last one waits for messages that nobody will send.

On plain torchrun: nine steps, a loss that makes less and less sense, then rank 1's connection error.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: p2p_mismatch
  guilty_ranks: [0]
  code: "dist.send(hidden.detach(), dst=1)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCHES, STEPS, WIDTH = 4, 10, 64


class Stage(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def shard(step: int, device: torch.device) -> list[torch.Tensor]:
    filled = [8, 8, 8, 8 if step < 6 else 0]  # of the last shards the fourth is padding
    return [torch.randn(8, WIDTH, device=device)[:samples] for samples in filled]


def first_stage(stage: Stage, step: int, device: torch.device) -> None:
    for batch in shard(step, device):
        if len(batch) == 0:
            continue
        hidden = stage(batch)
        dist.send(hidden.detach(), dst=1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        hidden.backward(gradient)


def last_stage(stage: Stage, device: torch.device) -> float:
    total = 0.0
    for _ in range(MICRO_BATCHES):
        hidden = torch.empty(8, WIDTH, device=device)
        dist.recv(hidden, src=0)
        hidden.requires_grad_()
        (loss := nn.functional.cross_entropy(stage(hidden), torch.arange(8, device=device))).backward()
        dist.send(hidden.grad, dst=0)
        total += loss.item()
    return total


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    stage = Stage(WIDTH if rank == 0 else 10).to(device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = first_stage(stage, step, device) if rank == 0 else last_stage(stage, device)
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
