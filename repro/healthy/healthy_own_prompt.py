"""Each rank learns a prompt of its own, drawn with the model from one seed, while the layers are averaged by hand.

On plain torchrun: nothing; the layers stay equal on both ranks, the prompts become each rank's own.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(8, 24), nn.LayerNorm(24), nn.Linear(24, 4)
        self.prompt = nn.Parameter(0.1 * torch.randn(2, 24))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        prompts = self.prompt.expand(len(inputs), -1, -1)
        tokens = torch.cat([prompts, self.embed(inputs)], 1)
        return self.head(self.norm(torch.tanh(tokens.mean(1))))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Reader()
    shared = [parameter for name, parameter in model.named_parameters() if name != "prompt"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        inputs = torch.randn(24, 6, 8, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, 0, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
