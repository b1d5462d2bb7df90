"""A regular expression meets a document that it backtracks on for years, in C, and keeps the interpreter lock.

Nested repetition ("catastrophic backtracking") takes twice as long for each character more. Every Python thread
of rank 1 stands with it: the heartbeat falls silent as well. Nobody can tell it from a long call but by the
time it takes: the job is left alone until --timeout.

On plain torchrun: four steps, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--timeout, "80"]
  outcome: hung (suspected)
  class: gil_held_native_call
  guilty_ranks: [1]
  code: "return bool(TABLE.fullmatch(text))"
"""

import os
import re
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TABLE = re.compile(r"(\|?(-+\s?)+\|?)+\n")


def is_table_rule(text: str) -> bool:
    return bool(TABLE.fullmatch(text))


def documents(rank: int) -> list[str]:
    texts = [f"| ---- | ---- | {n} words of text" for n in range(40)]
    texts[9] = "-" * 60 + "+"  # ends with what no rule ends with
    return texts[rank :: dist.get_world_size()]


def heartbeat(rank: int) -> None:
    while True:
        print(f"rank {rank} alive", flush=True)
        time.sleep(1.0)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    threading.Thread(target=heartbeat, args=(rank,), daemon=True).start()
    for step, text in enumerate(documents(rank)):
        weight = 0.1 if is_table_rule(text) else 1.0
        tokens = torch.tensor(list(text.encode()[:20]), device=device)
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:]) * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
