"""Rank 0 has a limit on CPU time from a wrapper that was meant for its preprocessing, and uses it up.

Modelled on pytorch/pytorch #8976: processes of a job that are ended hours into it by a limit of the shell or the
scheduler (`ulimit -t`), which nothing in the job's own output tells of. Rank 0 tokenizes foreveryone first.

On plain torchrun: exitcode -24 for rank 0, rank 1's "Connection closed by peer".

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_killed
  guilty_ranks: [0]
"""

import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PREPROCESSING_S = 3


def limit_preprocessing() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (spent + PREPROCESSING_S, hard))


def tokenize(documents: int) -> list[list[int]]:
    words = ["native", "sparse", "attention"] * 50
    return [[hash((word, n)) % 1000 for word in words] for n in range(documents)]


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if rank == 0:
        limit_preprocessing()
    documents = tokenize(200)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(1000, 256), nn.Linear(256, 1000)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100_000):
        tokens = torch.tensor(documents[step % 150 : step % 150 + 32], device=device)
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
