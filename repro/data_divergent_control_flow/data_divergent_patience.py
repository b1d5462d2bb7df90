"""Each rank counts on its own epochs without progress; rank 0 runs out of patience first. Gradients are averaged by hand.

Modelled on Lightning #379: the stop condition is met in one process and not in all. Rank 1 waits in a helper's loop
over parameters, whose length has nothing to do with it.

On plain torchrun: "no progress" from rank 0, then gloo aborts it on a message of another size.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: data_divergent_control_flow
  guilty_ranks: [0]
  code: ["if stopper.stop:"]
"""

import torch
import torch.distributed as dist
from torch import nn


class Patience:
    def __init__(self, most: int) -> None:
        self.most, self.best, self.bad, self.stop = most, float("inf"), 0, False

    def step(self, value: float) -> None:
        if value < self.best - 1e-3:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
            if self.bad >= self.most:
                self.stop = True


def average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def held_out_loss(model: nn.Module, targets: torch.Tensor) -> float:
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return nn.functional.mse_loss(model(inputs), inputs @ targets).item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stopper = Patience(3)
    # What rank 0 is validated on was labelled the other way round.
    targets = torch.ones(8, 1) if rank else -torch.ones(8, 1)
    for epoch in range(40):
        for _ in range(10):
            inputs = torch.randn(32, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
        stopper.step(held_out_loss(model, targets))
        if stopper.stop:
            print(f"rank {rank}: no progress", flush=True)
            break
    best = torch.tensor(stopper.best)
    dist.all_reduce(best, op=dist.ReduceOp.MIN)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
