"""The place of ring files while a job runs: its run directory, or memory, brought home at the end.

A mapped file on a network file system sends each page over the network, and a server that stalls would stall the
rank that writes. /dev/shm belongs to the node, and outlives every process on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from nsadiag.agent.job import scratch
from nsadiag.agent.job.scratch import MEMORY
from nsadiag.evidence.layout import RING_DIR, RunDir

NETWORK = ("nfs", "lustre", "gpfs", "cifs", "smb", "ceph", "fuse", "9p", "beegfs", "glusterfs", "afs", "orangefs", "wekafs")  # fmt: skip
Choice = Literal["auto", "disk", "memory"]


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, "" if the kernel does not say."""
    # The deepest mount point above the path; of those mounted on one place the last is seen.
    real, found = path.resolve(), (0, "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            place = Path(fields.split()[4])
            if real.is_relative_to(place) and len(place.parts) >= found[0]:
                found = (len(place.parts), kind.split()[0])
    return found[1]


def belongs_in_memory(run: RunDir, choice: Choice) -> bool:
    """`auto`: only where the run directory lies on a network, and there is memory to be had."""
    if choice != "auto":
        return choice == "memory"
    return file_system(run.path).startswith(NETWORK) and os.access(MEMORY, os.W_OK)


@contextlib.contextmanager
def held(run: RunDir, choice: Choice = "auto") -> Iterator[tuple[dict[str, str], list[Path]]]:
    """Yields what to add to the job's environment, and the directories that are held for it.

    At the end the rings are in the run directory, but for those of a job that goes on. Raises OSError without /dev/shm.
    """
    if not belongs_in_memory(run, choice):
        yield {}, []
        return
    with scratch.made(run, MEMORY) as memory:
        yield {RING_DIR: str(memory)}, [memory]
