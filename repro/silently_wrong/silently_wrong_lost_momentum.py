"""After a restart within the job the weights are restored, and the optimizer begins anew, although its state was saved with them.

Elastic trainers do this after a loss spike or a lost node: `optimizer.load_state_dict` is missing on one of two paths.
Adam's second moments are gone, and the first steps after the restart are those of a cold start.

On plain torchrun: a small bump in the loss.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (optimizer_begun_anew)
  guilty_ranks: [0, 1]
  code: "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # again"
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    saved = {}
    for step in range(16):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 5:
            saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if step == 8:
            model.load_state_dict(saved["model"])
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # again
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
