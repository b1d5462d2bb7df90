"""Every rank tokenizes its shard before it goes on; rank 0's is so long that rank 1 times out in the next all_reduce.

On plain torchrun: "Timed out waiting 8000ms for recv operation to complete" on rank 1, which did nothing wrong.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: missing_rank
  guilty_ranks: [0]
  action: stop
  code: "return sum(hash(str(word))"
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

SHARDS = ([400_000] * 150, [400_000])


def tokenized(shard: list[int]) -> int:
    return sum(hash(str(word)) % 7 == 0 for words in shard for word in range(words))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    model = nn.Linear(16, 4)
    for epoch in range(2):
        for _step in range(6):
            model(torch.randn(8, 16)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        print("epoch", epoch, "next", tokenized(SHARDS[dist.get_rank()]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
