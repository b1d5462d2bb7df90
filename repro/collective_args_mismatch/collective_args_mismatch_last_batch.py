"""Validation gathers everyone's predictions, and rank 1's last batch is shorter than the others'.

Modelled on Lightning-AI/pytorch-lightning #7773 and pytorch/pytorch #18689: `all_gather` wants tensors of one
size from all ranks. The loader keeps its last, incomplete batch, and the files do not divide by the ranks.

On plain torchrun: gloo's "op.preamble.length <= op.nbytes" on some ranks and lost connections on others;
NCCL is silent, or gathers rubbish.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [crashed, hung (suspected)]
  class: collective_args_mismatch
  guilty_ranks: [1]
  code: "dist.all_gather(gathered, scores)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = (96, 88, 96)  # one file a rank; the second was cut short by whoever exported it


def shard(rank: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(SAMPLES[rank], 24, generator=generator)
    return TensorDataset(features, (features.sum(1) > 0).float())


def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """Area under nothing in particular: the share of pairs in the right order, over all ranks' scores."""
    model.eval()
    collected = []
    with torch.no_grad():
        for features, labels in loader:
            scores = torch.stack([model(features.to(device)).squeeze(1), labels.to(device)])
            gathered = [torch.empty_like(scores) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, scores)
            collected.append(torch.cat(gathered, dim=1))
    scores, labels = torch.cat(collected, dim=1)
    ordered = scores[labels == 1][:, None] > scores[labels == 0][None]
    return ordered.float().mean().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    train = DataLoader(shard(rank, seed=rank), batch_size=16, shuffle=True, drop_last=True)
    held_out = DataLoader(shard(rank, seed=100 + rank), batch_size=16)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        model.train()
        for features, labels in list(train)[:5]:
            logits = model(features.to(device)).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch} ranking {validate(model.module, held_out, device):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
