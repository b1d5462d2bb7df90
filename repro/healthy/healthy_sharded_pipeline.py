"""Two pipeline stages of two replicas each: FSDP2 keeps the gradients of all micro-batches, and reduces them once.

Modelled on how torchtitan combines `torch.distributed.pipelining` with `fully_shard`.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, MICRO_BATCHES = 32, 4


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(device.type, (2, dist.get_world_size() // 2), mesh_dim_names=("stage", "data"))
    stages, place = mesh["stage"], mesh.get_local_rank("stage")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(device)
    fully_shard(model, mesh=mesh["data"])
    stage = PipelineStage(model, place, stages.size(), device, group=stages.get_group())
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(1 + mesh.get_local_rank("data"))
    for _ in range(40):
        batch = torch.randn(16, WIDTH, device=device)
        if place == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch.tanh())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
