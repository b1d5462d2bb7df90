"""Each step has a backward for reconstruction and one for labels; hooks average gradients in the second, which never reaches the decoder.

Modelled on pytorch/pytorch#69031 (parameters unused in the last backward of accumulated gradients).

On plain torchrun: nothing at all; the encoder and the classifier stay equal, and each rank gets a decoder of its own.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (earlier_backwards)
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(parameter.grad)"
  parameter: "decoder.weight"
"""

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.decoder, self.classifier = nn.Linear(32, 20), nn.Linear(32, 5)
        self.is_last = False
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self.average)

    def average(self, parameter: torch.Tensor) -> None:
        if self.is_last:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(inputs)
        return self.classifier(hidden) if self.is_last else self.decoder(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        inputs = torch.randn(24, 20, generator=generator)
        optimizer.zero_grad()
        model.is_last = False
        nn.functional.mse_loss(model(inputs), inputs).backward()
        model.is_last = True
        nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
