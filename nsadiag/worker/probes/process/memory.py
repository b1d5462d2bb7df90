"""Memory at boot, after the first step, and now and then: on the device, resident, and their peaks."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nsadiag.evidence.layout import read_own_json, write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.training.optimizer import on_some_steps

STATM = Path("/proc/self/statm")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def resident_kib() -> int:
    """Resident memory of the process now."""
    return int(STATM.read_text().split()[1]) * PAGE_KIB


def device_kib() -> tuple[int, int]:
    """Memory that the allocator of the current device has given out, and the most that it ever had; the device is not asked."""
    if (
        not torch.cuda.is_initialized()
    ):  # `is_available` would start the driver, and the job could no longer fork
        return 0, 0
    allocated = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
    return allocated["current"] // 1024, allocated["peak"] // 1024


@harmless
def record(when: str) -> None:
    rank = session.current()
    if rank is not None:
        now, peak = device_kib()
        rank.emit(Kind.MEMORY, Phase.POINT, rank.names(when), now, resident_kib(), peak)


def _after_step(_optimizer: Any, steps: int) -> None:
    record("step 1" if steps == 1 else "step")


@harmless
def _at_exit() -> None:
    rank = session.current()
    if rank is None:
        return
    # No event: the end of the process is the last one, and the exit handlers' order is not ours to choose.
    peaks = {
        "resident_peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "device_peak_kib": device_kib()[1],
    }
    if meta := read_own_json(rank.directory.meta):
        write_json(rank.directory.meta, {**meta, "memory": peaks})


@contextlib.contextmanager
def memory() -> Iterator[None]:
    """Memory on the device and resident: at boot, after step 1, every 50 steps, at exit (also in meta.json)."""
    record("boot")
    on_some_steps.append(_after_step)
    atexit.register(_at_exit)
    try:
        yield
    finally:
        on_some_steps.remove(_after_step)
        atexit.unregister(_at_exit)
