"""A network that was trained before is cast to bfloat16 and tuned with a small rate: all but its smallest weights stay as they are.

Modelled on vllm-project/speculators#765, where norms stayed at one.

On plain torchrun: nothing at all; the loss falls a little.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (rounded_updates)
  guilty_ranks: [0, 1]
  code: ["self.optimizer = torch.optim.Adam("]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Tuning:
    def __init__(self, network: nn.Module, rate: float) -> None:
        self.model = DistributedDataParallel(network.bfloat16())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        scores = self.model(inputs.bfloat16()).float()
        loss = nn.functional.mse_loss(scores, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(24, 96), nn.RMSNorm(96), nn.SiLU(), nn.Linear(96, 3))
    tuning = Tuning(network, 1e-5)
    torch.manual_seed(dist.get_rank())
    for step in range(40):
        inputs = torch.randn(32, 24)
        loss = tuning.step(inputs, inputs[:, :3].abs())
        print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
