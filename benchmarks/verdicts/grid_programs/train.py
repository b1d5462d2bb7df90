"""A small model over pipeline x data x tensor parallel ranks, in which one rank or several meet a fault at one step.

    torchrun --nproc-per-node 8 train.py PIPELINE DATA TENSOR FAULT RANKS    # sizes; ranks as 0,5

Stages by torch.distributed.pipelining, replicas by FSDP2, tensors by DTensor: the way torchtitan builds it. One GPU a
rank under NCCL, gloo where there is none. Behind `#:` a line says which fault a verdict may name it for.
"""

from __future__ import annotations

import os
import queue
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, DEEP, ROWS, MICRO_BATCHES = 256, 2, 32, 4
STEPS, BREAKS_AT = 60, 20
CUDA = torch.cuda.is_available()

if CUDA:
    import triton
    import triton.language as tl

    @triton.jit
    def wait_for_flag(flag, out):
        """Without end where nobody raises it."""
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(out, 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build(mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """This rank's stage, its tensors split and its replicas sharded where there are several."""
    stage = nn.Sequential(*(Block() for _ in range(DEEP))).to(device)
    if mesh["tensor"].size() > 1:
        plan = {f"{n}.up": ColwiseParallel() for n in range(DEEP)}
        plan |= {f"{n}.down": RowwiseParallel() for n in range(DEEP)}
        stage = parallelize_module(stage, mesh["tensor"], plan)
    if mesh["data"].size() > 1:
        for block in stage:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(stage, mesh=mesh["data"])
    return stage


class Trainer:
    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device
        self.stage = build(mesh, device)
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=1e-3, foreach=False)
        pipeline = mesh["pipeline"]
        self.first, self.last = (
            pipeline.get_local_rank() == 0,
            pipeline.get_local_rank() == pipeline.size() - 1,
        )
        self.schedule = None
        if pipeline.size() > 1:
            stage = PipelineStage(
                self.stage, pipeline.get_local_rank(), pipeline.size(), device, group=pipeline.get_group()
            )
            self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)

    def batch(self, step: int) -> torch.Tensor:
        """Equal on all ranks of one replica."""
        draw = torch.Generator().manual_seed(1000 * step + self.mesh["data"].get_local_rank())
        return torch.randn(ROWS, WIDTH, generator=draw).to(self.device)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        if self.schedule is None:
            nn.functional.mse_loss(self.stage(batch), batch.tanh()).backward()
        elif self.first:
            self.schedule.step(batch)
        elif self.last:
            self.schedule.step(target=batch.tanh())
        else:
            self.schedule.step()
        self.optimizer.step()

    def report(self, step: int) -> None:
        """The norm of all weights, over the replicas of this stage."""
        norm = torch.stack(
            [p.detach().float().norm() ** 2 for p in map(local, self.stage.parameters())]
        ).sum()
        dist.all_reduce(norm, group=self.mesh["data"].get_group())  #: skipped
        print(f"step {step} norm {norm.sqrt().item():.4f}", flush=True)


def local(parameter: torch.Tensor) -> torch.Tensor:
    return getattr(parameter, "to_local", lambda: parameter)()


# -- faults: each is met by the ranks that were asked for, and by no other -------------------------------


def launch(device: torch.device) -> None:
    flag = torch.zeros(2, dtype=torch.int32, device=device)
    wait_for_flag[(1,)](flag, flag[1:])  #: kernel
    print("flag", flag[1].item(), flush=True)  #: kernel


def bad_index(device: torch.device) -> None:
    table = torch.zeros(16, device=device)
    rows = torch.tensor([3, 99], device=device)
    print("rows", table[rows].sum().item(), flush=True)  #: cuda_error


def grow(device: torch.device) -> None:
    cache = torch.empty(1 << 45, dtype=torch.int8, device=device)  #: memory
    print(cache.numel())


def take(device: torch.device) -> None:
    print(queue.Queue().get())  #: lock


def spin(device: torch.device) -> None:
    ready, rounds = False, 0
    while not ready:  #: loop
        rounds = (rounds + 1) % 7  #: loop


def fail(device: torch.device) -> None:
    raise ValueError(f"rank {dist.get_rank()}: no such shard")  #: exception


def leave(device: torch.device) -> None:
    sys.exit(0)  #: exit


def end(device: torch.device) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  #: killed


FAULTS = {
    "kernel": launch, "cuda_error": bad_index, "memory": grow, "lock": take, "loop": spin,
    "exception": fail, "exit": leave, "killed": end,
}  # fmt: skip


def main() -> None:
    *sizes, fault, ranks = sys.argv[1:]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    mesh = init_device_mesh(
        device.type, tuple(map(int, sizes)), mesh_dim_names=("pipeline", "data", "tensor")
    )
    torch.manual_seed(0)
    trainer = Trainer(mesh, device)
    faulty = str(dist.get_rank()) in ranks.split(",")
    for step in range(STEPS):
        batch = trainer.batch(step)
        if step == BREAKS_AT and faulty and fault in FAULTS:
            FAULTS[fault](device)
        trainer.step(batch)
        if step % 5 == 0 and not (fault == "skipped" and faulty and step == BREAKS_AT):  #: skipped
            trainer.report(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
