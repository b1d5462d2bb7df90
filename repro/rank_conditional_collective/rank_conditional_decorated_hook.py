"""A helper behind Lightning's `rank_zero_only` averages a score over all ranks: rank 0 alone comes to the collective.

Modelled on Lightning-AI/pytorch-lightning #19604, with the decorator as it is imported everywhere: the wrapper that
lets one rank in is a library's, and shows no condition of the user's.

On plain torchrun: three epochs, then silence until gloo's timeout; rank 1 is in the backward of the next epoch.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["dist.all_reduce(total)", "publish(net, inputs)", "@rank_zero_only"]
"""

import os

import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank_zero_only.rank = int(os.environ["RANK"])


@rank_zero_only
def publish(net: nn.Module, inputs: torch.Tensor) -> None:
    """The mean score of the held-out rows, for the dashboard."""
    with torch.no_grad():
        total = net(inputs).sum(0)
    dist.all_reduce(total)
    print(f"score {(total / len(inputs)).tolist()}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(20):
        for _ in range(4):
            inputs = torch.randn(32, 16, generator=generator)
            loss = nn.functional.cross_entropy(model(inputs), inputs.argmax(1) % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        if epoch == 2:
            publish(net, inputs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
