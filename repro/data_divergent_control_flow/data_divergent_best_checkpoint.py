"""A new best validation loss on one rank sends it alone into the saving of the sharded model.

Modelled on pytorch/pytorch #77562: a checkpoint was saved on a new low of a loss that had been reduced to rank 0
only, so the ranks did not agree on whether it was one, and those that saved gathered from the others forever.

On plain torchrun: "new best" from some ranks, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [2]
  code: ["if mean.item() < best:", "state = get_model_state_dict(", "save(model, epoch)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model: nn.Module, epoch: int) -> None:
    """Whole weights on the CPU of rank 0."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    print(f"epoch {epoch}: {len(state)} tensors gathered", flush=True)


@torch.no_grad()
def validation_loss(model: nn.Module, epoch: int, rank: int, device: torch.device) -> torch.Tensor:
    """Mean loss, reduced to one rank; the others keep sums of their own."""
    generator = torch.Generator().manual_seed(7)
    batch = torch.randn(32, 24, generator=generator).to(device)
    loss = nn.functional.mse_loss(model(batch), batch) + (0.2 * epoch if rank != 2 else -0.2 * epoch)
    dist.reduce(loss, dst=0)
    return loss / (dist.get_world_size() if rank == 0 else 1)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, best = dist.get_rank(), float("inf")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(10):
        for _ in range(4):
            batch = torch.randn(16, 24, device=device)
            loss = nn.functional.mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        mean = validation_loss(model, epoch, rank, device)
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f} validation {mean.item():.4f}", flush=True)
        if mean.item() < best:
            best = mean.item()
            save(model, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
