"""Two views of a batch go through DDP one after the other before one backward, with find_unused_parameters=True.

Modelled on pytorch/pytorch #58111 and the many contrastive trainers that met it: DDP prepares for a backward in each
forward; with two of them it takes what the first has marked unused for ready, and then its gradient comes.

On plain torchrun: "Expected to mark a variable ready only once" on both ranks.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_ready_twice
  guilty_ranks: [0, 1]
  code: "loss.backward()"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(48, dim), nn.GELU())
        self.projector, self.predictor = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, *, predict: bool) -> torch.Tensor:
        y = self.projector(self.trunk(x))
        return self.predictor(y) if predict else y


def similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return nn.functional.cosine_similarity(a, b, dim=-1).mean()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder().to(device), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        picture = torch.randn(32, 48, device=device)
        predicted = model(picture + 0.1 * torch.randn_like(picture), predict=True)
        target = model(picture + 0.1 * torch.randn_like(picture), predict=False)
        loss = -similarity(predicted, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
