"""Two pipelines of two stages; a stage's peer is given as its rank in the pipeline, where the world's is meant.

Modelled on vllm-project/vllm-omni #6264, where a rank within a group met an API that wants the global one. In the
first pipeline both are the same; in the second, rank 3 waits for rank 0, which never sends to it.

On plain torchrun: silence from the start on ranks 2 and 3; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [3]
  code: "dist.irecv(x, src=peer)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 256


class Pipeline:
    """Two stages, and a group of all ranks with the same stage."""

    def __init__(self) -> None:
        rank = dist.get_rank()
        self.stage, self.replica = rank % 2, rank // 2
        self.ranks = [2 * self.replica, 2 * self.replica + 1]
        self.replicas = [dist.new_group([stage, stage + 2]) for stage in range(2)][self.stage]

    def feed(self, x: torch.Tensor) -> None:
        work = dist.isend(x, dst=self.ranks[1])
        work.wait()

    def fetch(self, like: torch.Tensor) -> torch.Tensor:
        x = torch.empty_like(like)
        peer = self.stage - 1
        work = dist.irecv(x, src=peer)
        work.wait()
        return x

    def average(self, model: nn.Module) -> None:
        for p in model.parameters():
            dist.all_reduce(p.grad, group=self.replicas)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    pipeline = Pipeline()
    torch.manual_seed(pipeline.stage)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(pipeline.replica)
    for step in range(10):
        x = torch.randn(64, WIDTH, generator=generator).to(device)
        if pipeline.stage == 1:
            x = pipeline.fetch(x)
        out = model(x)
        loss = out.square().mean()  # each stage has a loss of its own: nothing flows back
        optimizer.zero_grad()
        loss.backward()
        if pipeline.stage == 0:
            pipeline.feed(out.detach())
        pipeline.average(model)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
