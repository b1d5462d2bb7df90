"""Features of texts are gathered by a plain all_gather, and pictures alone are compared with them: the text encoder has no gradient.

Modelled on kohjingyu/fromage#33 and 3dlg-hcvc/DuoduoCLIP#10.

On plain torchrun: nothing at all; the loss falls, as pictures learn to fit fixed texts.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (lost_in_exchange)
  guilty_ranks: [0, 1]
  code: ["dist.all_gather(parts, features)"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = 16


class Encoders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
        self.texts = nn.EmbeddingBag(20, 16)

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.pictures(picture), self.texts(text)
        return nn.functional.normalize(features[0]), nn.functional.normalize(features[1])


def gathered(features: torch.Tensor) -> torch.Tensor:
    parts = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features)
    return torch.cat(parts)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoders(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        text = torch.randint(20, (ROWS, 5), generator=generator)
        picture = torch.zeros(ROWS, 20).scatter_add_(1, text, torch.ones(ROWS, 5))
        pictures, texts = model(picture, text)
        everyone = gathered(texts)
        scores = 8 * pictures @ everyone.T
        loss = nn.functional.cross_entropy(scores, torch.arange(ROWS) + ROWS * rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
