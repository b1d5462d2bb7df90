"""Each rank builds its vocabulary from its own shard: rank 1's embedding has another size.

Modelled on pytorch/pytorch #32426: models that differ between processes by the first dimension of one embedding,
after which the job stopped before its first forward without a word. Newer versions of DDP say so, on all ranks but
the first, whose own error is a lost connection.

On plain torchrun: "appears not to match sizes of the same param in process 0" on rank 1, a connection error on rank 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: model_structure_mismatch
  guilty_ranks: [1]
  code: "DDP(Tagger(len(words))"
  parameter: embedding.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CORPUS = [
    "the cat sat on the mat",
    "a dog ran to a dog",
    "the cat ran",
    "colourless green ideas sleep furiously",
]


class Tagger(nn.Module):
    def __init__(self, words: int, dim: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens))[0])


def vocabulary(lines: list[str]) -> dict[str, int]:
    return {word: i for i, word in enumerate(sorted({w for line in lines for w in line.split()}))}


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shard = CORPUS[rank::world_size]
    words = vocabulary(shard)
    torch.manual_seed(0)
    model = DDP(Tagger(len(words)).to(device))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(20):
        line = shard[step % len(shard)].split()
        tokens = torch.tensor([[words[w] for w in line]], device=device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
