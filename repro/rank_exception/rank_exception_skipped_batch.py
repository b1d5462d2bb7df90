"""Rank 1 skips a batch that its model cannot take, and says so; from then on the ranks are one step apart.

Modelled on pytorch/pytorch #44353 and NVIDIA-NeMo/Automodel #2468: an `except` around forward and backward that
goes on with the next batch, on one rank alone. Its peers reduce gradients with those of another batch, and at the
end of the epoch they wait for a backward that never comes.

On plain torchrun: "skipping" from rank 1, then steps as usual, then silence; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (suspected), crashed]
  class: rank_exception
  guilty_ranks: [1]
  code: ["self.position(torch.arange(", "loss.item()", "model(tokens)"]  # on a GPU a later call hears of it
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CONTEXT = 128


class Classifier(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.token, self.position = nn.Embedding(1000, dim), nn.Embedding(CONTEXT, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True)
        self.head = nn.Linear(dim, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.layer(x).mean(1))


def lengths(rank: int, batches: int) -> list[int]:
    table = [32 + 8 * (i % 5) for i in range(batches)]
    if rank % 2 == 1:
        table[6] = CONTEXT + 40  # a document that nobody cut
    return table


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, length in enumerate(lengths(rank, 20)):
        tokens = torch.randint(1000, (8, length), device="cpu").to(device)
        try:
            loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 4)
            loss.backward()
        except (IndexError, RuntimeError) as error:
            print(f"rank {rank} skipping batch {step}: {error}", flush=True)
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    accuracy = torch.zeros(1, device=device)
    dist.all_reduce(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
