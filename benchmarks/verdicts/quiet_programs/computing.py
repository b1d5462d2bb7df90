"""Quiet phases in which a rank computes, with or without the interpreter lock; a third of the time, to leave cores to others."""

from __future__ import annotations

import gc
import hashlib
import random
import time
import zlib

import torch
from job import Job, shape


def busy(job: Job, work) -> None:
    """Calls it for as long as this phase computes."""
    until = time.monotonic() + job.seconds / 3
    while job.is_quiet_one and time.monotonic() < until:
        work()


@shape()
def traced_by_dynamo(job: Job) -> None:
    """Recompilation for every new shape, on one rank."""
    if job.is_quiet_one:
        torch._dynamo.reset()
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(10)))

    def once() -> None:
        torch._dynamo.reset()
        torch.compile(model, backend="eager")(torch.randn(2, 8))

    busy(job, once)


@shape()
def generated_code(job: Job) -> None:
    """Python compiles a long generated module: one call that keeps the interpreter lock."""
    source = "\n".join(f"def f{n}(x):\n    return [x + i for i in range({n})]" for n in range(3000))
    busy(job, lambda: compile(source, "generated", "exec"))


@shape()
def collected_garbage(job: Job) -> None:
    rows = [{"tokens": [n], "next": (n,)} for n in range(200_000)] if job.is_quiet_one else []
    busy(job, gc.collect)
    del rows


@shape()
def sorted_index(job: Job) -> None:
    rows = [str(random.random()) for _ in range(300_000)] if job.is_quiet_one else []
    busy(job, lambda: sorted(rows))


@shape()
def shuffled_index(job: Job) -> None:
    rows = list(range(500_000)) if job.is_quiet_one else []
    busy(job, lambda: random.shuffle(rows))


@shape()
def factorized_statistics(job: Job) -> None:
    """Linear algebra in one call, without the interpreter lock."""
    matrix = torch.randn(400, 400)
    busy(job, lambda: torch.linalg.svd(matrix))


@shape()
def bootstrapped_metric(job: Job) -> None:
    busy(job, lambda: sum(random.choice((0, 1)) for _ in range(2000)))


@shape()
def checksums_of_shards(job: Job) -> None:
    data = bytes(30_000_000) if job.is_quiet_one else b""
    busy(job, lambda: hashlib.md5(data).digest())


@shape()
def compressed_shards(job: Job) -> None:
    data = bytes(random.choices(range(256), k=500_000)) if job.is_quiet_one else b""
    busy(job, lambda: zlib.compress(data, 9))


@shape()
def slow_backward(job: Job) -> None:
    """A layer of the user's own with a Python loop in its backward."""

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            until = time.monotonic() + (job.seconds if job.is_quiet_one else 0)
            while time.monotonic() < until:
                gradient = gradient + torch.zeros(1, device=gradient.device)
                time.sleep(0.05)
            return gradient

    Scan.apply(job.model(torch.randn(4, 64))).sum().backward()


@shape()
def simulated_on_the_host(job: Job) -> None:
    """Bursts of computation with pauses, as of a simulator in lock-step with a clock."""
    for _ in range(4 if job.is_quiet_one else 0):
        sum(n * n for n in range(200_000))
        time.sleep(job.seconds / 4)


@shape()
def rows_counted_in_batches(job: Job) -> None:
    """A scan of a database on the disk of another host: a little work, and long answers."""
    for _ in range(job.draw.choice((2, 3, 8)) if job.is_quiet_one else 0):
        bytearray(20_000_000).count(1)
        time.sleep(job.seconds / 4)
