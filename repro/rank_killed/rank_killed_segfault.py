"""A native extension on rank 0 follows a null pointer: the process dies of SIGSEGV, without a traceback.

Modelled on NVIDIA/Megatron-LM #1880 and pytorch/pytorch #61839: "exitcode: -11", "Signal 11 (SIGSEGV)
received by PID", local rank 0. A string table reached through ctypes stands in for the extension; rank
0's shard asks for an entry that was never loaded.

On plain torchrun: rank 1's "Connection closed by peer", "Signal 11 (SIGSEGV) received by PID"; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_killed
  guilty_ranks: [0]
  code: "ctypes.string_at(address)"
"""

import ctypes
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class StringTable:
    """Documents in memory that the tokenizer extension owns, by address."""

    def __init__(self, documents: list[str], capacity: int):
        self.buffers = [ctypes.create_string_buffer(document.encode()) for document in documents]
        self.addresses = (ctypes.c_void_p * capacity)(*(ctypes.addressof(b) for b in self.buffers))

    def __getitem__(self, index: int) -> bytes:
        address = ctypes.c_void_p(self.addresses[index])
        return ctypes.string_at(address)


def batch_of(text: bytes, device: torch.device) -> torch.Tensor:
    return torch.tensor(list(text.ljust(64)[:64]), dtype=torch.float32, device=device).repeat(16, 1) / 256


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    loaded = (3, 100)[rank % 2]  # rank 0's reader stopped early
    table = StringTable([f"document {i}" for i in range(loaded)], capacity=100)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        batch = batch_of(table[step], device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
