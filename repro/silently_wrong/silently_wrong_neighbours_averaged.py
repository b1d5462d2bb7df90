"""Two towers on two ranks each: ranks 0 and 2 hold one, 1 and 3 the other, and gradients are averaged over 0, 1 and 2, 3.

Modelled on NVIDIA/Megatron-LM#1628 and laekov/fastmoe#106 (gradients reduced over the wrong group).

On plain torchrun: nothing at all; the loss falls more slowly, and the replicas of each tower drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (mixed_replicas)
  guilty_ranks: [0, 1, 2, 3]
  code: "dist.all_reduce(parameter.grad, group=replicas)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tower"))
    replicas = mesh.get_group("tower")
    tower, replica = rank % 2, rank // 2
    torch.manual_seed(20 + tower)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(replica)
    for _step in range(20):
        pairs = torch.randn(24, 2, 12, generator=generator)
        mine = model(pairs[:, tower])
        other = mine.detach().clone()
        peer = rank + 1 - 2 * tower
        calls = [dist.P2POp(dist.isend, mine.detach(), peer), dist.P2POp(dist.irecv, other, peer)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        loss = (mine - other).square().mean() - 0.1 * mine.var(0).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=replicas)
            parameter.grad /= 2
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
