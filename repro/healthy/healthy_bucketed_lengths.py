"""All ranks seed torch alike, and take from the bucket of one length in each step: the lengths are the same, the samples are not.

The generators are in one state on all ranks for dropout, which draws the same masks for other samples.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LONGEST = 9


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.drop, self.out = nn.Embedding(32, 24), nn.Dropout(0.1), nn.Linear(24, 4)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        counted = torch.arange(LONGEST) < lengths[:, None]
        return self.out((self.drop(self.tokens(tokens)) * counted[..., None]).sum(1) / lengths[:, None])


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(Mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    samples = torch.Generator().manual_seed(dist.get_rank())
    for step in range(40):
        lengths = torch.full((24,), 4 + step * 5 % 6)
        tokens = torch.randint(32, (24, LONGEST), generator=samples)
        loss = nn.functional.cross_entropy(model(tokens, lengths), tokens[:, 0] % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
