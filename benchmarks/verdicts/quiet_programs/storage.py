"""Quiet phases in which a rank waits for storage: long checkpoints, stalled reads, locks of other programs."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from job import Job, naps, shape
from outside import ask


@shape()
def checkpoint_in_pieces(job: Job) -> None:
    """Written piece by piece to a share that takes its time."""
    pieces = job.draw.choice((3, 10, 40))
    with (job.scratch / f"piece{job.rank}").open("wb") as file:
        for _ in range(pieces if job.is_quiet_one else 0):
            file.write(bytes(300_000))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(job.seconds / pieces)


@shape()
def checkpoint_of_all_ranks(job: Job) -> None:
    for part in range(4):
        torch.save(job.model.state_dict(), job.scratch / f"part{job.rank}-{part}")
        time.sleep(job.seconds / 4)


@shape()
def stalled_read(job: Job) -> None:
    """Nothing comes from the storage for a while, then all of it."""
    _read_fifo(job, pieces=1)


@shape()
def read_in_bursts(job: Job) -> None:
    _read_fifo(job, pieces=4)


def _read_fifo(job: Job, pieces: int) -> None:
    if not job.is_quiet_one:
        return
    path = job.scratch / f"fifo{time.monotonic_ns()}"
    os.mkfifo(path)
    ask("fifo", path=path, s=job.seconds, pieces=pieces)
    with path.open("rb", buffering=0) as file:
        while file.read(4096):
            pass


@shape()
def lock_of_another_program(job: Job) -> None:
    if not job.is_quiet_one:
        return
    path = job.scratch / "flock"
    ask("lock", path=path, s=job.seconds)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@shape()
def lock_file_polled(job: Job) -> None:
    """A lock by a file's existence: asked for again and again."""
    if not job.is_quiet_one:
        return
    path = job.scratch / f"done{time.monotonic_ns()}"
    ask("create", path=path, s=job.seconds)
    while not path.exists():
        time.sleep(job.draw.choice((0.05, 1.0, 5.0)))


@shape(2, 3)
def shard_awaited_by_peers(job: Job) -> None:
    """One rank prepares a file for which the others ask the file system."""
    path = job.scratch / f"shard{job.together.random()}"
    if job.is_quiet_one:
        naps(job, job.seconds)
        path.write_text("rows")
    while not path.exists():
        time.sleep(1.0)
    dist.barrier()


@shape()
def old_checkpoints_deleted(job: Job) -> None:
    """One after the other, with a pause that the file server asks for."""
    old = [job.scratch / f"old{job.rank}-{n}" for n in range(6)]
    for path in old if job.is_quiet_one else []:
        path.write_text("weights")
        time.sleep(job.seconds / 6)
        path.unlink()


@shape()
def dataset_copied(job: Job) -> None:
    """To the local disk, at the rate that the share gives."""
    if not job.is_quiet_one:
        return
    source = job.scratch / f"source{job.rank}"
    source.write_bytes(bytes(4_000_000))
    with source.open("rb") as there, (job.scratch / f"local{job.rank}").open("wb") as here:
        while piece := there.read(400_000):
            here.write(piece)
            time.sleep(job.seconds / 10)


@shape()
def mount_awaited(job: Job) -> None:
    until = time.monotonic() + job.seconds
    while job.is_quiet_one and not (Path("/nonexistent/mount").exists() or time.monotonic() > until):
        time.sleep(job.draw.choice((0.5, 3.0)))
