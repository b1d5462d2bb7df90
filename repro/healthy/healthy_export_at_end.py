"""Training is over, ranks 1 to 3 have left; rank 0 alone converts the weights for another 15 s.

Modelled on modelscope/ms-swift #9188, where rank 0 converted 62 shards for ten minutes after its peers had ended.
There a collective followed that nobody came to; here none does, and the job ends as it should.

On plain torchrun: ten steps, three ranks say goodbye, 15 s later "exported"; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import fully_shard

CONVERT_S = float(os.environ.get("CONVERT_S", "15"))


def quantise(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """Searches for each tensor the scale with the least error, and notes a digest of the result."""
    digests, until = {}, time.monotonic() + CONVERT_S
    while time.monotonic() < until:
        for name, weight in weights.items():
            scales = [weight.abs().max() / step for step in range(96, 160, 8)]
            best = min(
                scales, key=lambda s: ((weight / s).round().clamp(-127, 127) * s - weight).norm().item()
            )
            digests[name] = hashlib.sha256((weight / best).round().numpy().tobytes()).hexdigest()
    return digests


def main() -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        batch = torch.randn(8, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"exported {len(quantise(weights))} tensors", flush=True)
    else:
        print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main()
