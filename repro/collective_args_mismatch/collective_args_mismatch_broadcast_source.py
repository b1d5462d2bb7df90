"""After each round the best weights go to everyone, but the ranks do not agree on whose they are.

Modelled on vllm-project/vllm-omni #6264: a broadcast whose source is not the same rank for all. Every rank picks
the best by the scores it knows, and rank 0 alone has read those of the run before from its log.

On plain torchrun: silence after the first round; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (proven)
  class: collective_args_mismatch
  guilty_ranks: [0]
  code: "dist.broadcast(parameter.data, src=best)"
"""

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RATES = (0.005, 0.05, 0.01)  # of each rank
LAST_RUN = {"round": 41, "best_loss": [0.91, 0.07, 0.004]}


def resume(log: Path) -> list[float]:
    if not log.exists():
        return [float("inf")] * dist.get_world_size()
    return json.loads(log.read_text())["best_loss"]


class Population:
    """Each rank trains at its own rate; after a round all go on from the weights of the best."""

    def __init__(self, model: nn.Module, scores: list[float]):
        self.model, self.scores = model, scores

    def exchange(self, loss: torch.Tensor) -> int:
        everyone = [torch.empty_like(loss) for _ in self.scores]
        dist.all_gather(everyone, loss.detach())
        self.scores = [min(old, new.item()) for old, new in zip(self.scores, everyone, strict=True)]
        best = self.scores.index(min(self.scores))
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, src=best)
        return best


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    logs = Path(tempfile.mkdtemp(prefix="population"))
    if rank == 0:
        (logs / "scores.json").write_text(json.dumps(LAST_RUN))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
    population = Population(model, resume(logs / "scores.json"))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[rank])
    generator = torch.Generator().manual_seed(0)
    for turn in range(6):
        for _ in range(8):
            x = torch.randn(64, 16, generator=generator).to(device)
            loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        best = population.exchange(loss)
        print(f"rank {rank} round {turn} loss {loss.item():.4f}, going on from rank {best}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
