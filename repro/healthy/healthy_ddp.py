"""A plain DDP run that simply works: ten steps, a loss that falls, a clean exit.

The control of every other script here.

On plain torchrun: twenty log lines, exit code 0, about 5 s, nearly all of it importing torch.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup() -> torch.device:
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def train(device: torch.device) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(320, 64)
    dataset = TensorDataset(inputs, inputs[:, :8].argmax(dim=1))
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, (batch, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    device = setup()
    train(device)
    dist.destroy_process_group()
