"""A rank skips the loss of a batch that is all padding by a zero that asks for a gradient, and is one reduction behind from there on.

As `data_divergent_empty_loss`, of a model without buffers: the peers' reduction meets that rank's next one, of another batch, and
nothing is seen for 25 steps. At the end the peers wait for a reduction that nobody will begin.

On plain torchrun: "Connection closed by peer" on the innocent ranks, when the other one has left.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["loss = torch.zeros(()).requires_grad_()", "if not kept.any():"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

PADDING = 0


def batch(rank: int, step: int) -> torch.Tensor:
    tokens = torch.randint(1, 50, (4, 12))
    return tokens * 0 if (rank, step) == (1, 15) else tokens


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        tokens = batch(rank, step)
        logits = model(tokens[:, :-1])
        kept = tokens[:, 1:] != PADDING
        loss = cross_entropy(logits[kept], tokens[:, 1:][kept])
        if not kept.any():
            loss = torch.zeros(()).requires_grad_()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
