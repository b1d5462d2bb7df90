"""A restart restores model, optimizer and schedule, and counts epochs from 0 again: the sampler repeats the orders of before.

Modelled on checkpoints without the epoch, as KempnerInstitute/KempnerForge#51.

On plain torchrun: nothing at all; the training loss falls faster than it should.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (epochs_repeated)
  guilty_ranks: [0, 1]
  code: ["for points, labels in loader:"]
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2


def fit(saved: bytes | None) -> bytes:
    points = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(points, points[:, :4].argmax(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if saved is not None:
        state = torch.load(io.BytesIO(saved))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    checkpoint = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    return checkpoint.getvalue()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    fit(fit(None))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
