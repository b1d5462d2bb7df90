"""Advice by the exception: its class, its fix, and whether another attempt may succeed."""

from __future__ import annotations

import re

from nsadiag.analysis.facts.exceptions import memory_of
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.records import Act

# Types of transient errors of a network or service; and the messages of a broken device.
NETWORK_ERRORS = frozenset({
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "TimeoutError",
    "URLError", "HTTPError", "ReadTimeout", "ConnectTimeout", "ReadTimeoutError", "IncompleteRead",
})  # fmt: skip
DEVICE_BROKE = re.compile(r"uncorrectable (NVLink|ECC) error|hardware error|GPU is lost", re.IGNORECASE)
MEMORY = {
    "gpu": "Reduce this rank's memory (a smaller or shorter batch, activation checkpointing); if a batch is skipped, skip it on all ranks.",
    "host": "The host is out of memory: load less at once, use fewer workers, or raise the limit (ulimit -v, the cgroup's).",
}


def class_of(exception: Cause) -> str:
    return "gpu_oom" if memory_of(exception) == "gpu" else "rank_exception"


def fix_of(exception: Cause, otherwise: str) -> str:
    return MEMORY.get(memory_of(exception) or "", otherwise)


def actions_of(root: Cause) -> tuple[Act, ...]:
    """Retry after a network or device error; all other exceptions are the code's."""
    if DEVICE_BROKE.search(root.message):
        return ("exclude host", "retry")
    return ("retry",) if root.type.rpartition(".")[2] in NETWORK_ERRORS else ("fix code",)
