"""Rank 1 meets a batch whose loss is not finite and leaves it out; rank 0 waits in the reduction of the frames.

Modelled on pytorch/audio #3749: HuBERT's training step returns early on NaN, before the all-reduce of the
number of frames by which all ranks scale their gradients.

On plain torchrun: "left out" from rank 1 at step 7, a few more lines, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["if not torch.isfinite(loss):", "return None"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Pretraining:
    def __init__(self, device: torch.device) -> None:
        model = nn.Sequential(nn.Linear(40, 128), nn.GELU(), nn.Linear(128, 40))
        self.model, self.device = DDP(model.to(device)), device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def training_step(self, features: torch.Tensor, lengths: torch.Tensor) -> float | None:
        """One update, scaled by the frames of all ranks."""
        predicted = self.model(features)
        loss = ((predicted - features).square().mean(dim=(1, 2)) * lengths / lengths.max()).sum()
        if not torch.isfinite(loss):
            print(f"rank {dist.get_rank()}: loss {loss.item()}, batch left out", flush=True)
            return None
        frames = lengths.sum().float()
        dist.all_reduce(frames)
        self.optimizer.zero_grad()
        (loss / frames).backward()
        self.optimizer.step()
        return loss.item()


def utterances(step: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and lengths; one recording is silent, and its normalised features are 0/0."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    features = torch.randn(8, 25, 40, generator=generator)
    if (step, rank) == (7, 1):
        features[3] = (features[3] - features[3]) / 0.0
    return features.to(device), torch.randint(10, 25, (8,), generator=generator).to(device)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    pretraining = Pretraining(device)
    for step in range(20):
        loss = pretraining.training_step(*utterances(step, dist.get_rank(), device))
        if loss is not None:
            print(f"rank {dist.get_rank()} step {step} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
