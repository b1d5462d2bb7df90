"""Rank 1's producer process dies of a malformed record; the training loop waits for its next batch forever.

Modelled on stanford-futuredata/ColBERT #264 and pytorch/pytorch #110594: ranks that are "stuck on get()" of a
multiprocessing queue, whose producer is gone. multiprocessing prints a child's traceback, and tells its parent nothing.

On plain torchrun: a traceback "Process producer", a few more steps, silence.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: rank_exception
  guilty_ranks: [1]
  code: "json.loads(line)"
"""

import json
import multiprocessing
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def records(rank: int, count: int = 400) -> list[str]:
    """Lines of a file that a crawler wrote; one of rank 1's was cut off."""
    lines = [json.dumps({"tokens": [(n * k) % 97 for k in range(1, 17)]}) for n in range(count)]
    if rank == 1:
        lines[90] = lines[90][:40]
    return lines


def produce(lines: list[str], batches: multiprocessing.Queue) -> None:
    for start in range(0, len(lines), 8):
        batches.put([json.loads(line)["tokens"] for line in lines[start : start + 8]])
    batches.put(None)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    context = multiprocessing.get_context("spawn")
    batches = context.Queue(maxsize=4)
    producer = context.Process(target=produce, args=(records(rank), batches), name="producer", daemon=True)
    producer.start()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(97, 64), nn.Linear(64, 97)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while (batch := batches.get()) is not None:
        tokens = torch.tensor(batch, device=device)
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        step += 1
    producer.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
