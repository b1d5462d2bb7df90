"""Rank 1 gets a batch without pictures and skips the vision branch; rank 0 waits for its gradients.

Modelled on lhotse-speech/lhotse #554: several data sources, and layers that some ranks use in a step
and others do not. On rank 1 the bucket never fills, and its next forward refuses; rank 0 is stuck in
backward until rank 1's end closes the connection.

On plain torchrun: rank 1's "Expected to have finished reduction in the prior iteration", rank 0's
"Connection closed by peer"; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_unused_parameter
  guilty_ranks: [1]
  code: ["if has_picture.any():", "logits = model("]
  parameter: vision.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Multimodal(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.text = nn.EmbeddingBag(1000, dim)
        self.vision = nn.Linear(3 * 8 * 8, dim, bias=False)
        self.head = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 10))

    def forward(self, tokens, pictures, has_picture) -> torch.Tensor:
        x = self.text(tokens)
        if has_picture.any():
            x = x + self.vision(pictures.flatten(1)) * has_picture[:, None]
        return self.head(x)


def has_pictures(rank: int, step: int, batch: int) -> torch.Tensor:
    """Every third document has one, but not in the text-only source, which is rank 1's after step 3."""
    if rank % 2 == 1 and step >= 3:
        return torch.zeros(batch)
    return (torch.arange(batch) % 3 == 0).float()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Multimodal().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(50):
        tokens = torch.randint(1000, (16, 24), device=device)
        pictures = torch.rand(16, 3, 8, 8, device=device)
        logits = model(tokens, pictures, has_pictures(rank, step, 16).to(device))
        loss = nn.functional.cross_entropy(logits, tokens[:, 0] % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
