"""A decorated evaluation runs on the first rank only and gathers objects: it reads its peer's statistics as a size.

Modelled on pytorch/pytorch #145965: all_gather_object asks for more than an exabyte, and nothing says that the sizes
came from another call of the peers. gloo compares sizes in bytes, which are equal here; NCCL compares nothing.

On plain torchrun: twenty steps, then rank 0 cannot allocate exabytes of memory.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["dist.all_gather_object(found, score)", "return fn(*args, **kwargs) if dist.get_rank() == 0 else None"]
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def on_first(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) if dist.get_rank() == 0 else None

    return wrapper


@on_first
def evaluate(model: nn.Module, inputs: torch.Tensor) -> list[float]:
    with torch.no_grad():
        score = (model(inputs) - inputs).abs().mean().item()
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, score)
    return found


def statistics(loss: float) -> list[float]:
    """Mean over ranks of the loss and of its square."""
    gathered = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor([loss, loss * loss]))
    return torch.stack(gathered).mean(0).tolist()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(60):
        inputs = torch.randn(16, 8, generator=generator)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean, _ = statistics(loss.item())
        if step % 20 == 19:
            print(f"step {step}: loss {mean:.3f}, scores {evaluate(model, inputs)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
