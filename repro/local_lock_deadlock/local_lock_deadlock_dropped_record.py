"""Rank 1 waits forever for an answer from its own logging thread; rank 0 waits for rank 1.

Modelled on NovaSky-AI/SkyRL #1173 (a `.get()` without a timeout, waiting for a result that a worker
silently dropped) and nvidia-cosmos/cosmos-transfer2.5 #240 (a logging callback that stops one rank).
The uploader skips empty records without acknowledging them, and only rank 1's shard has one.

On plain torchrun: silence after step 3, rank 0 inside backward; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "self.acknowledged.get()"
"""

import os
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SampleLogger:
    """Sends generated samples to the tracker from a thread; on_step_end waits until they are stored."""

    def __init__(self) -> None:
        self.records, self.acknowledged = queue.Queue(), queue.Queue()
        self.stored = []
        threading.Thread(target=self._upload, name="uploader", daemon=True).start()

    def _upload(self) -> None:
        while True:
            step, samples = self.records.get()
            if not samples:
                continue
            self.stored.append((step, samples))
            self.acknowledged.put(step)

    def on_step_end(self, step: int, samples: list[str]) -> None:
        self.records.put((step, samples))
        self.acknowledged.get()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    prompts = [[f"prompt {i}"] for i in range(200)]
    prompts[7] = []  # a document that was filtered away
    shard = prompts[rank :: dist.get_world_size()]
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    logger = SampleLogger()
    for step, samples in enumerate(shard):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        logger.on_step_end(step, samples)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
