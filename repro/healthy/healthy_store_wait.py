"""Rank 0 tokenizes the corpus in a process pool before training; rank 1 waits for it in the store.

Modelled on axolotl-ai-cloud/axolotl #2684 and many like it ("main process first"): the ranks that wait show
nothing, and the one that works only waits for its children, which come and go. All CPU time is in those.

On plain torchrun: a line "tokenizing", 12 s of silence, then twenty steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import hashlib
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOKENIZE_S = float(os.environ.get("TOKENIZE_S", "12"))
SHARD = """
import hashlib, sys, time
until, digest = time.monotonic() + float(sys.argv[1]), b""
while time.monotonic() < until:
    digest = hashlib.sha256(digest + b"a document").digest()
print(digest.hex())
"""


def tokenize() -> str:
    """Shard after shard, each in a process of its own."""
    started, digests = time.monotonic(), []
    while time.monotonic() - started < TOKENIZE_S:
        done = subprocess.run([sys.executable, "-c", SHARD, "1.5"], capture_output=True, check=True)
        digests.append(done.stdout)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        print("tokenizing", flush=True)
        store.set("corpus", tokenize())
    else:
        store.wait(["corpus"])
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Embedding(512, 32), nn.Flatten(), nn.Linear(32 * 16, 512)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        tokens = torch.randint(512, (8, 17), device=device)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]), tokens[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
