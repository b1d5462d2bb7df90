"""The trainer calls a method of model.module: DDP is wrapped around the model, and never sees a forward.

Modelled on k2-fsa/icefall #226 and OpenTSLM/OpenTSLM #49: the wrapper only prepares for a backward in its own
forward, so each rank trains a model of its own on its share of the data, and only rank 0's is saved.

On plain torchrun: nothing at all; the loss falls on every rank.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: ["model.module.loss_of(batch, labels)", "cross_entropy(self.classify("]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Model(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(20, dim), nn.ReLU())
        self.classify = nn.Linear(dim, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(batch))

    def loss_of(self, batch: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.classify(self.encode(batch)), labels)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rows = torch.randn(960, 20)
    dataset = TensorDataset(rows, rows[:, :3].argmax(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = DDP(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (batch, labels) in enumerate(loader):
        batch, labels = batch.to(device), labels.to(device)
        loss = model.module.loss_of(batch, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
