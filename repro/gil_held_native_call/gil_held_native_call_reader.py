"""Rank 1's native reader waits for a record and keeps the interpreter lock; the thread that would send it needs it.

Modelled on rapidsai/rapidsmpf #188 (a C++ call that blocks without releasing the lock) and pytorch/pytorch
#109074. ctypes' PyDLL calls as such extensions do; rank 1's producer is a Python thread, its peer's ran ahead.

On plain torchrun: six steps, then silence; on rank 1 not even a signal handler in Python answers.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: gil_held_native_call
  guilty_ranks: [1]
  code: "self.library.read(self.outgoing, self.buffer, 64)"
"""

import ctypes
import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RecordReader:
    """Records through a pipe: a producer thread at one end, a C library at the other."""

    def __init__(self, ahead: int) -> None:
        self.library, self.buffer = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        self.outgoing, self.incoming = os.pipe()
        self.ahead, self.taken = ahead, 0
        self.first, self.asked = threading.Event(), threading.Semaphore(0)
        threading.Thread(target=self._produce, name="producer", daemon=True).start()
        self.first.wait()

    def _produce(self) -> None:
        for number in range(30):
            if number >= self.ahead:
                self.first.set()
                self.asked.acquire()  # one at a time from here on
            os.write(self.incoming, number.to_bytes(64, "little"))
        self.first.set()

    def next_seed(self) -> int:
        self.taken += 1
        if self.taken > self.ahead:
            self.asked.release()
        self.library.read(self.outgoing, self.buffer, 64)
        return int.from_bytes(self.buffer.raw, "little")


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(40, 160), nn.SiLU(), nn.Linear(160, 40)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reader = RecordReader(ahead=6 if rank == 1 else 30)
    for step in range(30):
        torch.manual_seed(reader.next_seed())
        batch = torch.randn(24, 40, device=device)
        loss = nn.functional.smooth_l1_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
