"""One rank of a program with a long quiet phase, and the table of shapes that such a phase may have."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass(kw_only=True)
class Job:
    """What a shape may use. `together` gives the same numbers on all ranks, so that they agree, and `draw` each rank its own."""

    seconds: float
    together: random.Random
    scratch: Path  # of the run, for all ranks
    draw: random.Random = field(default_factory=random.Random)
    has_gloo: bool = field(init=False)  # monitored_barrier is gloo's alone
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    world: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", "1")))

    def __post_init__(self) -> None:
        backend = os.environ.get("QUIET_BACKEND", "gloo")
        self.has_gloo = backend == "gloo"
        if backend == "nccl":
            torch.cuda.set_device(self.rank % torch.cuda.device_count())
            torch.set_default_device("cuda")
        if self.world > 1:
            dist.init_process_group(backend)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.model = DDP(model) if self.world > 1 else model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.quiet_rank = self.together.randrange(self.world)

    @property
    def is_quiet_one(self) -> bool:
        return self.rank == self.quiet_rank

    def backward(self) -> None:
        self.model(torch.randn(16, 64)).square().mean().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def meet(self) -> None:
        """A point at which all ranks have to come together, of one kind or another; the next step may be one too."""
        how = self.together.choice(("barrier", "monitored", "object", "sum", "step"))
        if self.world == 1 or how == "step":
            return
        if how == "barrier" or (how == "monitored" and not self.has_gloo):
            dist.barrier()
        elif how == "monitored":
            dist.monitored_barrier(timeout=timedelta(minutes=10))
        elif how == "object":
            dist.broadcast_object_list([self.seconds], src=self.quiet_rank)
        else:
            dist.all_reduce(torch.ones(1))

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A quiet phase that all ranks enter; most leave it at once, and wait for the one that does not."""

    run: Callable[[Job], None]
    ranks: tuple[int, ...]
    restarts: int = 0  # of torchrun


SHAPES: dict[str, Shape] = {}


def shape(*ranks: int, restarts: int = 0) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """Lists a function in the table, with the numbers of ranks on which it may run (1 to 3 where none is given)."""

    def listed(run: Callable[[Job], None]) -> Callable[[Job], None]:
        SHAPES[run.__name__] = Shape(run=run, ranks=ranks or (1, 2, 3), restarts=restarts)
        return run

    return listed


def naps(job: Job, seconds: float, shortest: float = 0.01, longest: float = 2.0) -> None:
    """Short sleeps, as of a program that polls or is rate-limited, until so many seconds have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(job.draw.uniform(shortest, longest), max(until - time.monotonic(), 0)))
