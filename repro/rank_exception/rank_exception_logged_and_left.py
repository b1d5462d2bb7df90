"""Rank 2 of 4 logs an error in its evaluation and ends with exit code 0; the others wait for it in FSDP.

Modelled on Lightning-AI/pytorch-lightning #6430: a `try` around the whole of the training, which logs what went
wrong and returns. The launcher sees a rank that ended well, and nothing that says which error came first.

On plain torchrun: one log line with a traceback, then "Connection closed by peer" from the other three.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [crashed, hung (suspected)]
  class: rank_exception
  guilty_ranks: [2]
  code: "sum(scores) / len(scores)"
"""

import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

log = logging.getLogger("train")


def evaluate(model: nn.Module, shard: list[torch.Tensor], step: int) -> float:
    scores = [model(batch).float().mean().item() for batch in shard if batch[0, 0] > 0 or step < 6]
    return sum(scores) / len(scores)


def fit(device: torch.device) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)]
    model = nn.Sequential(*blocks).to(device)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sign = -1.0 if rank == 2 else 1.0
    held_out = [sign * torch.ones(4, 64, device=device)]
    for step in range(30):
        batch = torch.randn(16, 64, device=device)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            log.info(
                "rank %d step %d loss %.4f score %.3f",
                rank,
                step,
                loss.item(),
                evaluate(model, held_out, step),
            )


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        fit(device)
    except Exception:
        log.exception("training failed on rank %d", dist.get_rank())
        return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
