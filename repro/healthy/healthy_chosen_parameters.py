"""Fine-tuning of the biases alone (BitFit), and then of a temperature on the network as it is: all else is left as it was on purpose.

Weights are not frozen, so that they have gradients; the calibration runs the network in eval mode, as it will be used.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
        self.network = nn.Sequential(*layers)
        self.temperature = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x) / self.temperature


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(20):
        x = torch.randn(16, 16)
        model.zero_grad()
        cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    scaled = Scaled()
    biases = [p for name, p in scaled.named_parameters() if name.endswith("bias")]
    torch.manual_seed(dist.get_rank())
    train(DistributedDataParallel(scaled), torch.optim.AdamW(biases, lr=1e-2))

    scaled.network.requires_grad_(False)
    scaled.temperature.requires_grad_(True)
    calibrated = DistributedDataParallel(scaled).eval()
    train(calibrated, torch.optim.SGD([scaled.temperature], lr=0.1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
