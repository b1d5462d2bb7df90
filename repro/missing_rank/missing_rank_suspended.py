"""Rank 1 is suspended by a batch system that forgets to resume it; rank 0 waits for it in its next all-reduce.

Modelled on Slurm's gang scheduling, `scontrol suspend` and preemption with SUSPEND: the job's processes are sent
SIGSTOP on every node, and a node that misses the SIGCONT leaves its ranks stopped in the middle of any line. A helper
stands for the batch system here, because rank 1 could not be started with one that forgets on purpose.

On plain torchrun: seven steps, then silence until gloo's timeout, which blames the connection.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: missing_rank
  guilty_ranks: [1]
  action: retry
  code: "os.read(answers, 1)"
"""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH_SYSTEM = "sleep 1; kill -STOP {pid}"  # no CONT ever comes


def yield_the_node() -> None:
    """Lets a job of higher priority run: the batch system stops us, and wakes us when it is our turn again."""
    answers, resumed = os.pipe()
    subprocess.Popen(["sh", "-c", BATCH_SYSTEM.format(pid=os.getpid())], pass_fds=[resumed])
    os.close(resumed)
    os.read(answers, 1)
    os.close(answers)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(*(Block(32) for _ in range(4))).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(20):
        x = torch.randn(16, 32, device=device)
        loss = nn.functional.mse_loss(model(x), x.roll(1, dims=-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 6 and rank == 1:
            yield_the_node()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
