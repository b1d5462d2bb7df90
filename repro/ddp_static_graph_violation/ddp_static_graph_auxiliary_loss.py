"""An auxiliary loss is dropped after some steps under static_graph=True: its head gets no gradient any more.

Modelled on deepinsight/insightface #2288 and pytorch/pytorch #58111. The step that changed the graph passes; DDP
complains in the forward behind it, on the ranks where an annealed weight has become zero.

On plain torchrun: "Expected to have finished reduction ... not compatible with static_graph", two steps late.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_static_graph_violation
  guilty_ranks: [0, 1]
  code: ["depth, edges = model(", "loss.backward()"]
  parameter: edges.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Depth(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        self.depth = nn.Linear(dim, 24)
        self.edges = nn.Linear(dim, 24, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.encoder(x)
        return self.depth(features), self.edges(features)


def weight_at(step: int) -> float:
    return max(0.0, 0.5 - 0.1 * step)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Depth().to(device), static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(20):
        batch = torch.randn(16, 24, device=device)
        depth, edges = model(batch)
        loss = nn.functional.l1_loss(depth, batch)
        if weight_at(step) > 0:
            loss = loss + weight_at(step) * nn.functional.mse_loss(edges, batch.sign())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
