"""Rank 1 is throttled from outside by stops and continues, and the throttle is killed between the two.

Modelled on cpulimit and the memory guards of shared machines: they hold a process down by SIGSTOP and SIGCONT, many
times a second, and one that is killed at the wrong moment leaves it stopped, anywhere. Being stopped for a while is no
hang: it is the last time that counts.

On plain torchrun: some steps at a third of their rate, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: missing_rank
  guilty_ranks: [1]
  action: retry
"""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

# Twelve rounds of a throttle, killed in the last.
THROTTLE = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do kill -STOP {pid}; sleep 0.1; kill -CONT {pid}; sleep 0.1; done; kill -STOP {pid}"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x))


def batches(rank: int, device: torch.device) -> object:
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(32, 64, generator=generator).to(device)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64) for _ in range(3))).to(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step, x in enumerate(batches(rank, device)):  # type: ignore[arg-type]
        loss = nn.functional.mse_loss(model(x), x.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 30 and rank == 1:
            subprocess.Popen(["sh", "-c", THROTTLE.format(pid=os.getpid())])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
