"""Rank 0 draws the attention after each step, and its peers wait for it in the flag by which all of them agree to stop.

Modelled on callbacks that plot on rank 0 under Lightning, whose ranks exchange such a flag before each batch: they meet there,
before any of them computes, and their gradients are ready at the same time.

On plain torchrun: training, at a tenth of its speed.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: slow
  class: straggler_rank
  guilty_ranks: [0]
  code: ["pixels[y][x] = shade", "for x in range(column * SCALE, (column + 1) * SCALE):", "for y in range(row * SCALE, (row + 1) * SCALE):"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LENGTH, SCALE = 16, 80


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(64, 32), nn.Linear(32, 8)
        self.attention = nn.MultiheadAttention(32, 1, batch_first=True)
        self.weights = torch.zeros(LENGTH, LENGTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        hidden, weights = self.attention(hidden, hidden, hidden)
        self.weights = weights[0].detach()
        return self.out(hidden)


def draw(weights: list[list[float]]) -> list[bytearray]:
    pixels = [bytearray(LENGTH * SCALE) for _ in range(LENGTH * SCALE)]
    for row in range(LENGTH):
        for column in range(LENGTH):
            shade = int(255 * weights[row][column])
            for y in range(row * SCALE, (row + 1) * SCALE):
                for x in range(column * SCALE, (column + 1) * SCALE):
                    pixels[y][x] = shade
    return pixels


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (720, LENGTH))
    data = TensorDataset(tokens, tokens % 8)
    sampler = DistributedSampler(data)
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stop = torch.zeros(1, dtype=torch.long)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = iter(DataLoader(data, batch_size=8, sampler=sampler))
        for _ in range(30):
            dist.all_reduce(stop)
            if stop.item():
                return
            inputs, labels = next(batches)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()
            if rank == 0:
                draw(model.module.weights.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
