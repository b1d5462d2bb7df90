"""DDP is given a group that was made for each rank alone: no gradient is ever exchanged.

Modelled on ByteDance-Seed/VeOmni #1059 and volcengine/verl #7493: the dimension of the mesh that was handed over has one rank.

On plain torchrun: nothing at all; each rank trains a model of its own, and rank 0's is saved.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (unexchanged_gradients)
  guilty_ranks: [0, 1]
  code: "model = DDP("
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def own_groups() -> dict[str, dist.ProcessGroup]:
    """Groups of a mesh that is as long as the job in its first dimension, and 1 in its second."""
    ranks = range(dist.get_world_size())
    inner = [dist.new_group([rank]) for rank in ranks]
    return {"shard": dist.new_group(list(ranks)), "replicate": inner[dist.get_rank()]}


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
    groups = own_groups()
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    model = DDP(net, process_group=groups["replicate"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
