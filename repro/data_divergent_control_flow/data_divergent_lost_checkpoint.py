"""After a restart within the job one rank finds no checkpoint on its new node, and begins anew while the others wait to be sent theirs.

Modelled on elastic trainers that look for a checkpoint in a node's own scratch folder before they agree on one. The rank is
in the training loop once more, which is not where it went astray.

On plain torchrun: silence until the time limit.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (proven), hung (suspected), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["if not self.file.exists():"]
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Scratch:
    """A node's own folder."""

    def __init__(self) -> None:
        self.file = Path(tempfile.mkdtemp()) / "newest.pt"

    def save(self, model: nn.Module, step: int) -> None:
        torch.save({"model": model.state_dict(), "step": step}, self.file)

    def resume(self, model: nn.Module) -> int:
        if not self.file.exists():
            return 0
        newest = [torch.load(self.file) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(newest, src=0)
        model.load_state_dict(newest[0]["model"])
        return newest[0]["step"]


def run(scratch: Scratch, steps: int) -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(scratch.resume(model), steps):
        inputs = torch.randn(32, 16)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if step % 10 == 9:
            scratch.save(model, step + 1)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    scratch = Scratch()
    run(scratch, 40)
    dist.barrier()
    if dist.get_rank() == 1:
        scratch = Scratch()  # the scheduler has replaced this node
    dist.barrier()
    run(scratch, 80)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
