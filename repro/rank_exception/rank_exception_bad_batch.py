"""One sample on rank 1 has the wrong shape: its collate raises, and rank 0 dies of the lost connection.

Modelled on bghira/SimpleTuner #59 and open-edge-platform/anomalib #1862: "stack expects each tensor to
be equal size", from a data set with one picture of another size. The first traceback is the cause; the
other rank's is a consequence, and often the one that is seen.

On plain torchrun: rank 1's traceback, rank 0's "Connection closed by peer", ChildFailedError; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: "torch.stack([image for image, _ in samples])"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    ODD_ONE_OUT = 53  # a portrait among landscapes

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        size = (3, 12, 16) if index != self.ODD_ONE_OUT else (3, 16, 12)
        return torch.full(size, index / 256), index % 4


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.stack([image for image, _ in samples])
    return images, torch.tensor([label for _, label in samples])


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    dataset = Pictures()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=collate)
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = DDP(nn.Sequential(features, nn.Linear(16, 4)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
