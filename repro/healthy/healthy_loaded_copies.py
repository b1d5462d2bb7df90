"""Every few steps rank 0 reads back the checkpoint that it wrote, to compare it, and exports a copy in half precision.

Both load a state into a model that never runs and is gone at once: it is what the model that trains has already.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def verify(net: Net) -> None:
    written = io.BytesIO()
    torch.save(net.state_dict(), written)
    written.seek(0)
    copy = Net()
    copy.load_state_dict(torch.load(written))
    assert all(map(torch.equal, copy.parameters(), net.parameters()))


def export(net: Net) -> None:
    copy = Net()
    copy.load_state_dict(net.state_dict())
    torch.save(copy.bfloat16().state_dict(), io.BytesIO())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(30):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
        if step % 5 == 4:
            if dist.get_rank() == 0:
                (export if step % 2 else verify)(net)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
