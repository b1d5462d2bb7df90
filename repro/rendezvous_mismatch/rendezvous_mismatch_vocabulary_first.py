"""Rank 1 waits for the vocabulary before it joins, rank 0 writes it after everyone has joined.

Modelled on mosaicml/llm-foundry #716 and Lightning-AI/pytorch-lightning #19448: data are prepared on one rank and
the others wait for a file that says so. A refactoring has moved the preparation behind `init_process_group`.

On plain torchrun: silence from the start; half an hour later rank 0's timeout in the store.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: [rendezvous_mismatch, external_wait]
  guilty_ranks: [1]
  code: ["time.sleep(0.5)", "while not path.exists():"]
"""

import collections
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TEXT = "the quick brown fox jumps over the lazy dog and the dog does not mind " * 20


def build_vocabulary(path: Path) -> None:
    counts = collections.Counter(TEXT.split())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({word: i for i, (word, _) in enumerate(counts.most_common())}))


def load_vocabulary(path: Path) -> dict[str, int]:
    while not path.exists():
        time.sleep(0.5)
    return json.loads(path.read_text())


class Bigram(nn.Module):
    def __init__(self, words: int):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, 32), nn.Linear(32, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def main() -> None:
    rank = int(os.environ["RANK"])
    path = Path(tempfile.gettempdir(), "vocabularies", os.environ["MASTER_PORT"], "vocabulary.json")
    vocabulary = load_vocabulary(path) if rank > 0 else {}
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    if rank == 0:
        build_vocabulary(path)
        vocabulary = load_vocabulary(path)
    model = DDP(Bigram(len(vocabulary)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.tensor([vocabulary[word] for word in TEXT.split()], device=device)
    for step in range(20):
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
