"""One checkpoint at a time: the next save waits for the last one, which a thread still compresses and writes.

Modelled on InternLM/xtuner #1703, which keeps at most one asynchronous save in flight and waits for it before the
next. Rank 0's training thread waits on a future, its writer thread works; rank 1 waits in its backward.

On plain torchrun: ten steps, 15 s of silence, ten more; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import io
import lzma
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COMPRESS_S = float(os.environ.get("COMPRESS_S", "15"))


class Checkpointer:
    """Takes a copy at once and writes it beside the training."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool = folder, ThreadPoolExecutor(1, "checkpoint")
        self.pending: Future[int] | None = None

    def save(self, state: dict[str, torch.Tensor], step: int) -> None:
        if self.pending is not None:
            print(f"previous checkpoint had {self.pending.result()} bytes", flush=True)
        copy = {name: value.detach().cpu().clone() for name, value in state.items()}
        self.pending = self.pool.submit(self._write, copy, step)

    def _write(self, state: dict[str, torch.Tensor], step: int) -> int:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        until = time.monotonic() + COMPRESS_S * (step == 5)
        packed = lzma.compress(buffer.getvalue())
        while time.monotonic() < until:  # smaller and smaller chunks, until the ratio is good
            packed = lzma.compress(buffer.getvalue(), preset=9)
        path = self.folder / f"step{step}.pt.xz"
        return path.write_bytes(packed)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 128)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder))
        for step in range(1, 21):
            batch = torch.randn(16, 128, device=device)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
            if rank == 0 and step % 5 == 0:
                checkpointer.save(model.module.state_dict(), step)
        checkpointer.pool.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
