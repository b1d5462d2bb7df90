"""A communication hook for DDP rounds gradients and sums them, as one does with fewer bits, and nobody divides by the ranks.

Modelled on pytorch/pytorch#42400: DDP leaves the division to the hook.

On plain torchrun: nothing at all; the learning rate seems to be twice what it says.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (summed_by_hook)
  guilty_ranks: [0, 1]
  code: "model.register_comm_hook("
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Rounded:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        largest = gradients.abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        unit = largest / self.steps + 1e-12
        whole = torch.round(gradients / unit).to(torch.int32)
        dist.all_reduce(whole)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(whole.to(gradients.dtype) * unit)
        return done


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    model = DistributedDataParallel(network)
    model.register_comm_hook(None, Rounded(2000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        inputs = torch.randn(32, 16)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
