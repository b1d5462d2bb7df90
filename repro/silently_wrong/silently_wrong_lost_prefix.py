"""A checkpoint of a wrapped model is loaded into the bare one with strict=False: no name fits, and nothing is loaded.

Modelled on checkpoints whose names begin with `module.`: strict=False was meant for one new layer, and passes all of them.

On plain torchrun: nothing at all; the fine-tuning starts from random weights.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (empty_load)
  guilty_ranks: [0, 1]
  code: "model.load_state_dict(checkpoint, strict=False)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(batch))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rows = torch.randn(192, 8)
    dataset = TensorDataset(rows, rows[:, :2].argmax(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    pretrained = DDP(Net().to(device))
    checkpoint = {name: value.clone() for name, value in pretrained.state_dict().items()}
    model = Net().to(device)
    model.load_state_dict(checkpoint, strict=False)
    model = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch, labels in loader:
        loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
