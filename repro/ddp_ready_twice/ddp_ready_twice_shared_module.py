"""One encoder reads both the question and the document, each under reentrant checkpointing.

Modelled on FlagOpen/FlagEmbedding #1155 (an embedding model, gradient checkpointing switched on) and
modelscope/ms-swift #3171: the same module is checkpointed twice in one forward, so that its gradients
arrive twice, in two separate backward passes; DDP counts one.

On plain torchrun: "Expected to mark a variable ready only once" on both ranks in the first backward; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_ready_twice
  guilty_ranks: [0, 1]
  code: ["checkpoint(self.encoder", "loss.backward()"]
  parameter: encoder.fc2.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Encoder(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim, bias=False)
        self.fc2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.fc2(nn.functional.gelu(self.fc1(x))), dim=-1)


class Retriever(nn.Module):
    """Scores every question of the batch against every document."""

    def __init__(self, dim: int = 64):
        super().__init__()
        self.embed = nn.EmbeddingBag(1000, dim)
        self.encoder = Encoder(dim)

    def represent(self, tokens: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.encoder, self.embed(tokens), use_reentrant=True)

    def forward(self, questions: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return self.represent(questions) @ self.represent(documents).T * 20


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Retriever().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        documents = torch.randint(1000, (16, 32), device=device)
        scores = model(documents[:, :8], documents)
        loss = nn.functional.cross_entropy(scores, torch.arange(16, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
