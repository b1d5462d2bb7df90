"""Only rank 0 has the throughput callback, which sums tokens over all ranks before it logs.

Modelled on Lightning-AI/pytorch-lightning #5865: training stops without a word after a callback that exists, or
fires, on one rank reduced a metric over all of them.

On plain torchrun: ten steps, then gloo aborts on a size that does not match, or silence (NCCL).

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["dist.all_reduce(total)", "callback.on_step_end(step, len(batch))", "for callback in callbacks:", "callbacks.append("]
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Throughput:
    """Tokens per second of the whole job, every ten steps."""

    def __init__(self, every: int, device: torch.device) -> None:
        self.every, self.device = every, device
        self.tokens, self.since = 0, time.monotonic()

    def on_step_end(self, step: int, tokens: int) -> None:
        self.tokens += tokens
        if step % self.every:
            return
        total = torch.tensor([float(self.tokens)] * 512, device=self.device)
        dist.all_reduce(total)
        rate = total[0].item() / (time.monotonic() - self.since)
        print(f"step {step}: {rate:.0f} tokens/s", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    is_main = dist.get_rank() == 0
    torch.manual_seed(dist.get_rank())
    model = DDP(
        nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 500)).to(device)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    callbacks = []
    if is_main:
        callbacks.append(Throughput(every=10, device=device))
    for step in range(1, 60):
        batch = torch.randint(500, (256,), device=device)
        loss = nn.functional.cross_entropy(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_main:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        for callback in callbacks:
            callback.on_step_end(step, len(batch))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
