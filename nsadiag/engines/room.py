"""The capacity of this machine: cells run side by side as long as each has its cores, its GPUs and its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
RANK_MIB = 600  # a rank of which nothing is known yet
SPARE_SHARE = 0.2  # of the memory that is free, which is left so


@dataclass(frozen=True, kw_only=True)
class Need:
    """The resources that one cell takes while it runs."""

    ranks: int
    gpus: int = 0  # as many as ranks where the machine has GPUs
    alone: bool = False  # its timing is what it was run for


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Cores that we may use, and GPUs by what CUDA_VISIBLE_DEVICES would call them."""

    cores: int
    gpus: tuple[str, ...] = ()


def this_machine() -> Machine:
    """As the scheduler, the control group and CUDA_VISIBLE_DEVICES leave it to us."""
    return Machine(cores=_cores(), gpus=_gpus())


def _cores() -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_LIMIT.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limit, or "max"
        return allowed


def _gpus() -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    # Device files, not the driver's list: a container sees its own ones only.
    found = sorted(int(p.name[6:]) for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit())
    return tuple(str(place) for place in range(len(found)))


def fits(need: Need, running: Sequence[Need], machine: Machine, *, most: int | None) -> bool:
    """Whether the cell may start beside those that run. `most` cells at once: the user asked for as many; None: cores decide."""
    if not running:
        return True
    if need.alone or any(other.alone for other in running):
        return False
    if most is not None and len(running) >= most:
        return False
    if most is None and need.ranks + sum(other.ranks for other in running) > machine.cores:
        return False
    return not need.gpus or need.gpus + sum(other.gpus for other in running) <= len(machine.gpus)


def has_memory(ranks: int, rank_mib: float | None) -> bool:
    """Whether so many ranks more have room; None: nothing is known of them."""
    # What runs already is in memory by now, or soon: the share that is spared has room for its growth.
    free_mib = (1 - SPARE_SHARE) * psutil.virtual_memory().available / 2**20
    return ranks * (RANK_MIB if rank_mib is None else rank_mib) < free_mib


def free_gpus(machine: Machine, taken: Sequence[str], count: int) -> tuple[str, ...]:
    """The first `count` that nobody has; fewer only where the machine has no more."""
    return tuple(gpu for gpu in machine.gpus if gpu not in taken)[:count]
