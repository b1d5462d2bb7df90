"""A batch without pictures passes by the vision encoder on one rank, whose weights FSDP2 shards over all of them.

Modelled on pytorch/pytorch #148334: a sharded model with an encoder that runs only where the batch has something
for it; the ranks that run it gather its weights from those that do not.

On plain torchrun: four steps, then silence until gloo's timeout, or a size that does not match.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (suspected), crashed]
  class: [divergent_module_execution, data_divergent_control_flow]
  guilty_ranks: [1]
  code: ["if pictures is not None:", "x = self.text(words)", "predicted = model(words, pictures)", "loss.backward()", "return self.head("]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Assistant(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(128, width)
        )
        self.text = nn.Sequential(nn.Embedding(200, width), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 200)

    def forward(self, words: torch.Tensor, pictures: torch.Tensor | None) -> torch.Tensor:
        x = self.text(words)
        if pictures is not None:
            x = x + self.vision(pictures)[:, None]
        return self.head(x)


def batch_of(step: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Conversations; every ninth batch of a shard has no pictures in it, and shards begin at different places."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    words = torch.randint(200, (4, 12), generator=generator).to(device)
    if (step + 4 + rank) % 9 == 8:
        return words, None
    return words, torch.randn(4, 3, 16, 16, generator=generator).to(device)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Assistant().to(device)
    for part in (model.vision, model.text):
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(25):
        words, pictures = batch_of(step, rank, device)
        predicted = model(words, pictures)
        loss = nn.functional.cross_entropy(predicted.flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
