"""Each rank divides its loss by its own number of tokens, and DDP averages the ranks, though one has much longer answers.

Modelled on reports of losses that are normalized by local instead of global token counts: with bucketed lengths a token
of the rank with short sequences counts several times as much as one of its peer.

On plain torchrun: nothing at all; both losses fall.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (own_token_mean)
  guilty_ranks: [0, 1]
  code: "nn.functional.cross_entropy("
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH, IGNORED = 40, 16, -100


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 24), nn.Linear(24, VOCABULARY)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        ids = torch.randint(VOCABULARY, (8, LENGTH), generator=generator)
        answers = torch.randint(2 + 9 * rank, 5 + 9 * rank, (8, 1), generator=generator)
        targets = ids[:, 1:].masked_fill(torch.arange(LENGTH - 1) >= answers, IGNORED)
        scores = model(ids)[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
