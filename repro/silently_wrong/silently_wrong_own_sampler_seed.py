"""Each rank's sampler gets the seed that is meant for augmentation, with the rank in it: shares of different orders overlap.

A third of the samples is read by both ranks in an epoch, and as many by none.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (overlapping_shares)
  guilty_ranks: [0, 1]
  code: ["sampler = DistributedSampler(dataset, seed=seed)"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    seed = 100 + dist.get_rank()
    torch.manual_seed(seed)
    points = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(points, points[:, :4].argmax(1))
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            noisy = inputs + 0.1 * torch.randn_like(inputs)
            loss = nn.functional.cross_entropy(model(noisy), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
