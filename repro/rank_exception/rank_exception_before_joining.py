"""Process 1 does not find its shard and raises before it joins the others; process 0 waits for it in init_process_group.

Modelled on launchers of one's own, which start a process a rank and wait for each in turn: nobody looks at the second
while the first has not ended. Which rank raised, no process group ever knew.

On plain python: a traceback of one process, then silence until the store's timeout half an hour later.

Promise:
  launch: python
  world_size: 2
  outcome: hung (suspected)
  class: rank_exception
  guilty_ranks: [1]
  code: "raise FileNotFoundError("
"""

import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDS = {0: "tokens-00000.bin"}


def shard_of(rank: int) -> str:
    if rank not in SHARDS:
        raise FileNotFoundError(f"tokens-{rank:05d}.bin")
    return SHARDS[rank]


def train(rank: int, port: str) -> None:
    shard = shard_of(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = DDP(nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = model(torch.randn(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{shard} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def launch() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), port]) for rank in (0, 1)]
    for each in ranks:
        each.wait()


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else launch()
