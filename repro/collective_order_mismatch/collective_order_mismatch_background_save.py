"""A thread saves while the loop trains: both issue collectives in one group, in whatever order they come.

Modelled on KempnerInstitute/KempnerForge #104: an asynchronous checkpoint gathers from a thread, on the process
group in which the main thread meets its barrier. Rank 1's disk is slower, so there the barrier comes first.

On plain torchrun: gloo's error about sizes, or silence; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: collective_order_mismatch
  guilty_ranks: [0, 1]
  code: ["dist.barrier()", "dist.all_gather_object(parts, part)"]
"""

import io
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Saver:
    """Writes each rank's part in the background, then tells all ranks what was written."""

    SECONDS_PER_MIB = {0: 0.0, 1: 6.0}

    def __init__(self, model: nn.Module):
        self.model = model
        self.thread: threading.Thread | None = None

    def save(self, step: int) -> None:
        state = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        self.thread = threading.Thread(target=self._write, args=(state, step), name="saver")
        self.thread.start()

    def _write(self, state: dict[str, torch.Tensor], step: int) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        time.sleep(self.SECONDS_PER_MIB[dist.get_rank()] * buffer.tell() / 2**20)
        part = {"rank": dist.get_rank(), "bytes": buffer.tell()}
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, part)
        print(f"rank {dist.get_rank()} saved step {step}: {parts}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Saver(model.module)
    for step in range(1, 40):
        x = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 5 == 0:
            saver.save(step)
            time.sleep(0.2)  # the learning-rate schedule is read from a file here
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
