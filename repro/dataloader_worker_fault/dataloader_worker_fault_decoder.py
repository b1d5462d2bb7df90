"""One of rank 0's loader workers never comes back from one sample: its decoder process gives no answer.

Modelled on pytorch/pytorch #1355 (an image on which `cv2.imread` never returned) and #21554 (the loader waits for
a worker that does not finish, without a timeout). The other worker has long done its share.

On plain torchrun: three steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: dataloader_worker_fault
  guilty_ranks: [0]
  code: ["return decoder.communicate()[0]", "batch = next(batches)"]
"""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def decoded(index: int) -> bytes:
    """What the decoder says of one clip; clip 42's is truncated, and the decoder wants more of it."""
    source = "cat /dev/zero | head -c 32" if index != 42 else "sleep 7d"
    decoder = subprocess.Popen(["sh", "-c", source], stdout=subprocess.PIPE)
    return decoder.communicate()[0]


class Clips(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        frames = torch.frombuffer(bytearray(decoded(index)), dtype=torch.uint8)
        return frames.float() + index / 160


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clips = Clips()
    sampler = DistributedSampler(clips, shuffle=False)
    loader = DataLoader(clips, batch_size=4, sampler=sampler, num_workers=2, prefetch_factor=2)
    batches = iter(loader)
    for step in range(len(loader)):
        batch = next(batches)
        loss = model(batch.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
