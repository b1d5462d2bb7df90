"""A pipeline of three stages; in every fourth step the last one expects one micro-batch more than is sent.

Modelled on pytorch/torchtitan #775: stages count their micro-batches by themselves and come to different numbers.
Here the last stage also wants a held-out micro-batch to report, and nobody has told the stages before it.

On plain torchrun: silence after step 2; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [2]
  code: "dist.recv(x, self.rank - 1)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn

MICRO, WIDTH, BATCH = 8, 64, 32
REPORT_EVERY = 4


class Stage:
    """One rank's layers; activations go forward, gradients back."""

    def __init__(self, device: torch.device):
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        torch.manual_seed(self.rank)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).to(device)
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.01)

    def micro_batches(self, step: int) -> int:
        return BATCH // MICRO + (self.rank == self.last and (step + 1) % REPORT_EVERY == 0)

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = data
        if self.rank > 0:
            x = torch.empty_like(data)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        out = self.layers(x)
        if self.rank < self.last:
            dist.send(out.detach(), self.rank + 1)
        return x, out

    def backward(self, x: torch.Tensor, out: torch.Tensor) -> float:
        if self.rank == self.last:
            out.square().mean().backward()
        else:
            grad = torch.empty_like(out)
            dist.recv(grad, self.rank + 1)
            out.backward(grad)
        if self.rank > 0:
            dist.send(x.grad, self.rank - 1)
        return out.square().mean().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    stage = Stage(device)
    for step in range(12):
        stage.optimizer.zero_grad()
        batches = [torch.randn(MICRO, WIDTH, device=device) for _ in range(stage.micro_batches(step))]
        saved = [stage.forward(batch) for batch in batches]
        loss = sum(stage.backward(x, out) for x, out in saved)
        stage.optimizer.step()
        print(f"stage {stage.rank} step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
