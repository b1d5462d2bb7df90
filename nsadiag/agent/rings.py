"""Where black boxes are held while a job runs: in its run directory, or in memory, brought home at the end.

A mapped file on a network file system sends each page over the network, and a server that stalls would stall the
rank that writes. /dev/shm belongs to the node, and outlives every process on it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from nsadiag.evidence.layout import FILE_MODE, RING_DIR, RunDir

MEMORY = Path("/dev/shm")
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
def held(run: RunDir, choice: Choice = "auto") -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """Yields what to add to the job's environment, and a function to call if the job goes on after the block.

    At the end the rings are in the run directory, whatever became of the job. Raises OSError without /dev/shm.
    """
    if not belongs_in_memory(run, choice):
        yield {}, lambda: None
        return
    stay: list[bool] = []
    memory = Path(tempfile.mkdtemp(prefix="nsadiag-", dir=MEMORY))
    try:
        yield {RING_DIR: str(memory)}, lambda: stay.append(True)
    finally:
        if not stay:
            bring_home(run)
            shutil.rmtree(memory, ignore_errors=True)


def bring_home(run: RunDir) -> None:
    """Replaces each link to a ring by the ring; one that cannot be copied stays a link."""
    for link in run.path.glob("ranks/*/**/blackbox.bin"):
        if link.is_symlink():
            with contextlib.suppress(OSError):
                copy = link.with_name(f".{link.name}.{os.getpid()}")
                shutil.copyfile(link, copy)
                copy.chmod(FILE_MODE)
                copy.replace(link)
