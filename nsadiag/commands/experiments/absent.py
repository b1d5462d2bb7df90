"""Whatever a rehearsed script needs and this machine, or a rehearsal, does not have: the reason why it can't be rehearsed."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.rehearsal.calls import Rehearsal
from nsadiag.evidence.user_code import is_user

MOST_OF_MESSAGE = 200
PACKAGE = ("ModuleNotFoundError",)
DEVICE = re.compile(
    r"not compiled with CUDA|No CUDA GPUs are available|no NVIDIA driver|has no attribute '_cuda_|CUDA (?:is not|driver)|invalid device ordinal"
)
MEMORY = re.compile(r"can't allocate memory|Cannot allocate memory|Unable to allocate|DefaultCPUAllocator")
# Another rank may have what one lacks, and then it is a fault of the job's: only where all of them ask in vain.
HOSTS = re.compile(
    r"network is cut off|Network is unreachable|Temporary failure in name resolution|Name or service not known|ConnectError|"
    r"Max retries exceeded|couldn't connect to|LocalEntryNotFoundError|offline mode"
)
USAGE = 2  # the code with which a script leaves whose arguments are missing
LEFT = {str(USAGE), str(-signal.SIGTERM)}


def absent(cell: CellEvidence, found: Rehearsal, launcher_code: int | None) -> str:
    """A sentence with the line that asked; empty where no rank ended for want of anything."""
    raised = {rank.rank: rank.exception for rank in cell.ranks if rank.exception is not None}
    for rank, error in raised.items():
        if error.type in PACKAGE or DEVICE.search(error.message):
            return f"rank {rank} asked for what is not here: {_said(error)}"
        if error.type == "MemoryError" or MEMORY.search(error.message):
            return f"rank {rank} asked for more than its share of this machine's memory: {_said(error)}"
    if found.world_size and len(raised) == found.world_size:
        if all(_asks_for_another_host(error) for error in raised.values()):
            return f"every rank asked for another host, and a rehearsal has no network: {_said(raised[min(raised)])}"
        if all(error.type == "FileNotFoundError" for error in raised.values()):
            return f"every rank asked for a file that is not here: {_said(raised[min(raised)])}"
    # Of the others, which the launcher ended, the first to leave is not known to differ.
    if not found.matched and not raised and launcher_code == USAGE and set(found.ended.values()) <= LEFT:
        last = (rank.stderr_tail.strip().rpartition("\n")[2] for rank in cell.ranks)
        return f"the script left with code {USAGE} before its first call: {next(filter(None, last), '')[:MOST_OF_MESSAGE]}"
    return ""


def _asks_for_another_host(error: Raised) -> bool:
    return HOSTS.search(f"{error.type}: {error.message}") is not None


def _said(error: Raised) -> str:
    """The exception, and the user's line that it went through last."""
    asked = next((f for f in reversed(error.frames) if is_user(f.file)), None)
    at = f" at {Path(asked.file).name}:{asked.line}" if asked else ""
    return f"{error.type}: {error.message[:MOST_OF_MESSAGE]}{at}"
