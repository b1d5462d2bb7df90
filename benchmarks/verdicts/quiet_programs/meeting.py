"""Quiet phases that the ranks share: evaluation, preparation and uneven work, while the others wait in a collective."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from job import Job, naps, shape
from torch.distributed.algorithms.join import Join


@shape(2, 3)
def evaluation_on_one_rank(job: Job) -> None:
    until = time.monotonic() + job.seconds
    while job.is_quiet_one and time.monotonic() < until:
        with torch.no_grad():
            getattr(job.model, "module", job.model)(torch.randn(64, 64))
        time.sleep(0.2)
    dist.barrier()


@shape(2, 3)
def tokenized_by_rank_0(job: Job) -> None:
    if job.rank == 0:
        for part in range(5):
            words = [str(n * part) for n in range(100_000)]
            (job.scratch / f"tokens{part}").write_text(" ".join(words))
            time.sleep(job.seconds / 5)
    dist.barrier()


@shape(2, 3)
def generous_monitored_barrier(job: Job) -> None:
    if job.is_quiet_one:
        time.sleep(job.seconds)
    if job.has_gloo:
        dist.monitored_barrier(timeout=timedelta(minutes=10))
    else:
        dist.barrier()


@shape(2, 3)
def weights_from_a_late_rank(job: Job) -> None:
    if job.is_quiet_one:
        naps(job, job.seconds, 0.5, 8.0)
    dist.broadcast_object_list([torch.zeros(10)], src=job.quiet_rank)


@shape(2, 3)
def uneven_inputs_joined(job: Job) -> None:
    batches = 6 if job.is_quiet_one else 2
    with Join([job.model]):
        for _ in range(batches):
            if job.is_quiet_one:
                time.sleep(job.seconds / batches)
            job.model(torch.randn(8, 64)).square().mean().backward()
            job.optimizer.step()


@shape(2, 3)
def key_of_the_store(job: Job) -> None:
    store = dist.distributed_c10d._get_default_store()
    key = f"ready{job.together.random()}"
    if job.is_quiet_one:
        time.sleep(job.seconds)
        store.set(key, "yes")
    else:
        store.wait([key], timedelta(minutes=10))


@shape(2, 3)
def polled_key_of_the_store(job: Job) -> None:
    store = dist.distributed_c10d._get_default_store()
    key = f"ready{job.together.random()}"
    if job.is_quiet_one:
        naps(job, job.seconds)
        store.set(key, "yes")
    while not store.check([key]):
        time.sleep(0.5)


@shape()
def accumulation_with_host_work(job: Job) -> None:
    """Micro-batches without a reduction, each after augmentation on the host that mostly waits."""
    if job.world == 1:
        for _ in range(4):
            time.sleep(job.seconds / 4)
            job.backward()
        return
    with job.model.no_sync():
        for _ in range(4):
            time.sleep(job.seconds / 4 if job.is_quiet_one else 0)
            job.backward()
    job.step()


@shape(2, 3)
def slow_stage_of_a_pipeline(job: Job) -> None:
    for _ in range(2):
        if job.rank:
            dist.recv(torch.empty(64), src=job.rank - 1)
        if job.is_quiet_one:
            time.sleep(job.seconds / 2)
        if job.rank < job.world - 1:
            dist.send(torch.zeros(64), dst=job.rank + 1)


@shape(2, 3)
def one_rank_after_the_other(job: Job) -> None:
    """Each builds a cache while the others wait, so that they do not all load the storage at once."""
    for rank in range(job.world):
        if rank == job.rank:
            time.sleep(job.seconds / job.world)
        dist.barrier()


@shape(2, 3)
def rare_averaging(job: Job) -> None:
    """Local steps, and the parameters are averaged once in a while."""
    local = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
    until = time.monotonic() + job.seconds
    while time.monotonic() < until:
        local(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.5 if job.is_quiet_one else 0.05)
    for parameter in local.parameters():
        dist.all_reduce(parameter.data)


@shape(2, 3)
def group_made_late(job: Job) -> None:
    if job.is_quiet_one:
        time.sleep(job.seconds)
    dist.all_reduce(torch.ones(1), group=dist.new_group(timeout=timedelta(minutes=10)))


@shape(2, 3)
def all_waited_for_asynchronously(job: Job) -> None:
    if job.is_quiet_one:
        naps(job, job.seconds, 0.1, 4.0)
    works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


@shape(2, 3)
def gathered_predictions(job: Job) -> None:
    """Generation ends at another time on each rank."""
    time.sleep(job.seconds * (job.rank + 1) / job.world)
    found = [None] * job.world
    dist.all_gather_object(found, {"rank": job.rank})


@shape(2, 3, restarts=1)
def restarted_once(job: Job) -> None:
    """A first attempt that gives up, and a second one that waits before it goes on."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        time.sleep(min(job.seconds, 4.0))
        raise RuntimeError("the node's storage is not mounted yet")
    if job.is_quiet_one:
        time.sleep(job.seconds)
