"""The metrics of each task are collected in the order in which a rank first met the tasks, and orders differ.

Modelled on NVIDIA/nvalchemi-toolkit #143 and Lightning-AI/pytorch-lightning #19106: a loop over a dict (there: a
set) issues one collective a key, another kind for each, and the keys of one rank are ordered otherwise.

On plain torchrun: gloo's error about sizes or silence, after the first epoch; NCCL is silent.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (proven), crashed]
  class: collective_order_mismatch
  guilty_ranks: [2]
  code: ["dist.all_reduce(histogram)", "dist.all_gather_object(everyone,"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

# Which task comes next in each rank's stream of samples.
STREAMS = ("sds", "ssd", "dss")


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(48, 128), nn.ReLU())
        self.segment, self.detect = nn.Linear(128, 10), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.trunk(x)
        return {"segment": self.segment(features), "detect": self.detect(features)}


def collect_segments(outputs: list[torch.Tensor]) -> float:
    histogram = torch.bincount(torch.cat(outputs).argmax(1), minlength=10).float()
    dist.all_reduce(histogram)
    return histogram.max().item()


def collect_boxes(outputs: list[torch.Tensor]) -> float:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, torch.cat(outputs).sigmoid().cpu())
    return torch.cat(everyone).prod(1).mean().item()


COLLECT = {"segment": collect_segments, "detect": collect_boxes}


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TwoHeads().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(5):
        seen: dict[str, list[torch.Tensor]] = {}
        for step in range(9):
            task = {"s": "segment", "d": "detect"}[STREAMS[rank][step % 3]]
            outputs = model(torch.randn(16, 48, device=device))
            seen.setdefault(task, []).append(outputs[task].detach())
            loss = outputs[task].square().mean() + 0.0 * sum(o.sum() for o in outputs.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {task: round(COLLECT[task](outputs), 3) for task, outputs in seen.items()}
        print(f"rank {rank} epoch {epoch} {metrics}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
