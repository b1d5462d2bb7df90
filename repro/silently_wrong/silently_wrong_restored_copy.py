"""The weights of a checkpoint are loaded into a copy of the model, which is dropped.

Modelled on `loaded_into_copy`, of benchmarks/verdicts/silent_programs/loading.py.in.

On plain torchrun: nothing at all; training goes on as if nothing had been loaded.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (loaded_beside)
  guilty_ranks: [0, 1]
  code: "copy.deepcopy(model.module).load_state_dict(kept[0])"
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(count: int) -> TensorDataset:
    """Points, and the class of each."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(points, points[:, :4].argmax(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=18)
    step = 0
    dataset = samples(128)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step == 5:
                parts = (model.module, optimizer, schedule)
                kept = copy.deepcopy([part.state_dict() for part in parts])
            if step == 7:
                copy.deepcopy(model.module).load_state_dict(kept[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
