"""A worker of rank 0's loader meets a record without its field; the trainer hides it behind an error of its own.

Modelled on bghira/SimpleTuner #59: data that only one shard holds. The worker's traceback arrives as text inside
another exception, which the trainer turns into a third one; the line that matters is in the data set.

On plain torchrun: three tracebacks in one, then rank 1's "Connection closed by peer".

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: [rank_exception, dataloader_worker_fault]
  guilty_ranks: [0]
  code: "record["
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Reviews(Dataset):
    def __init__(self) -> None:
        self.records = [{"stars": i % 5, "length": 10 + i % 40} for i in range(240)]
        del self.records[100]["stars"]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        record = self.records[index]
        return torch.full((32,), record["length"] / 50), record["stars"]


class DataError(RuntimeError):
    pass


def batches(loader: DataLoader) -> Iterator[list[torch.Tensor]]:
    try:
        yield from loader
    except KeyError as error:
        raise DataError("could not read the next batch") from error


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    dataset = Reviews()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (features, stars) in enumerate(batches(loader)):
        loss = nn.functional.cross_entropy(model(features.to(device)), stars.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
