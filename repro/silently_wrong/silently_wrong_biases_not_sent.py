"""Each rank updates a share of the parameters and sends them, in a loop over the layers that sends their weights alone.

Modelled on optimizers that shard their state by hand, as ZeRO's first stage does.

On plain torchrun: nothing at all; each bias moves on the rank that updates it, and on no other.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (unsent_updates)
  guilty_ranks: [0, 1]
  code: "dist.broadcast(layer.weight.data, owner[layer.weight])"
"""

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mix, self.decode = nn.Linear(16, 48), nn.Linear(48, 48), nn.Linear(48, 20)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.relu(self.mix(torch.relu(self.encode(inputs)))))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net()
    layers = (net.encode, net.mix, net.decode)
    owner = {parameter: n % world for n, layer in enumerate(layers) for parameter in layer.parameters()}
    optimizer = torch.optim.Adam([parameter for parameter, o in owner.items() if o == rank], lr=3e-3)
    generator = torch.Generator().manual_seed(rank)
    for _step in range(20):
        inputs = torch.randn(32, 16, generator=generator)
        loss = nn.functional.mse_loss(net(inputs), inputs.repeat(1, 2)[:, :20].sin())
        net.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        for layer in layers:
            dist.broadcast(layer.weight.data, owner[layer.weight])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
