"""Two ranks of three are stuck, each for a reason of its own: rank 1 in its logger's lock, rank 2 at a server's socket.

Modelled on incidents in which mending one fault only shows the next: whoever names one of two culprits costs the
person another night. Rank 0 waits for both in one all-reduce.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (proven)
  class: [external_wait, local_lock_deadlock]
  guilty_ranks: [1, 2]
  code: ["with lock, lock:", "return connection.recv(64)"]
"""

import socket
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def flush(lock: threading.Lock) -> None:
    """Writes the log under its lock, which it takes twice."""
    with lock, lock:
        print("flushed", flush=True)


def next_shard() -> bytes:
    """Asks a service that takes the call and has nothing to say."""
    service = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(service.getsockname())
    connection.sendall(b"next\n")
    return connection.recv(64)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(16, 64)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 4 and rank == 1:
            flush(threading.Lock())
        if step == 4 and rank == 2:
            next_shard()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
