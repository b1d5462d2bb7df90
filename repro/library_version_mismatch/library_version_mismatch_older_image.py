"""Rank 2's host still has last year's image: a helper that chooses its collective by torch's version chooses another.

Modelled on NVIDIA/nccl #354, where hosts of one job had different versions of NCCL and every collective hung, and on
helpers as in Megatron-LM and accelerate, which call `all_gather_into_tensor` where torch has it and `all_gather` where
it has not. One machine has one torch: rank 2 says another version, and all else follows from that.

On plain torchrun: silence after the first evaluation, or gloo's error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (suspected), crashed]
  class: [library_version_mismatch, data_divergent_control_flow]
  guilty_ranks: [2]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

# The image that each host was started from, and its torch.
IMAGES = {"trainer:2026-09": torch.__version__, "trainer:2025-02": "2.4.1+cu121"}
HOSTS = ("trainer:2026-09", "trainer:2026-09", "trainer:2025-02")


def version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def gather(scores: torch.Tensor) -> torch.Tensor:
    """The scores of all ranks, in one tensor."""
    world_size = dist.get_world_size()
    if version() >= (2, 5):
        everyone = scores.new_empty(world_size * scores.numel())
        dist.all_gather_into_tensor(everyone, scores)
        return everyone
    sizes = [torch.zeros(1, dtype=torch.long, device=scores.device) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([scores.numel()], device=scores.device))
    parts = [scores.new_empty(int(size)) for size in sizes]
    dist.all_gather(parts, scores)
    return torch.cat(parts)


def main() -> None:
    torch.__version__ = torch.version.__version__ = IMAGES[HOSTS[int(os.environ["RANK"])]]
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        x = torch.randn(16, 32, device=device)
        loss = nn.functional.cross_entropy(model(x), torch.arange(16, device=device) % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            scores = gather(model(x).detach().softmax(1).amax(1))
            print(f"rank {rank} step {step} mean score {scores.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
