"""Advice by the exception: its class, its fix, and whether another attempt may succeed."""

from __future__ import annotations

from nsadiag.analysis.facts.exceptions import memory_of
from nsadiag.analysis.facts.texts.error_causes import cause_in
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.records import Act

# Types of transient errors of a network or service.
NETWORK_ERRORS = frozenset({
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "TimeoutError",
    "URLError", "HTTPError", "ReadTimeout", "ConnectTimeout", "ReadTimeoutError", "IncompleteRead",
})  # fmt: skip
MEMORY = {
    "gpu": "Reduce this rank's memory (a smaller or shorter batch, activation checkpointing); if a batch is skipped, skip it on all ranks.",
    "host": "The host is out of memory: load less at once, use fewer workers, or raise the limit (ulimit -v, the cgroup's).",
}
OF_A_WORKER = "Find what ended the worker: dmesg shows the kernel's OOM killer; `num_workers=0` shows an exception where it occurs."
OF_ITS_OWN_EXIT = "Something that the worker called ended its process with that code (os._exit, or a library's exit): `num_workers=0` makes it end the rank at that line, which its log or a debugger shows."
NO_ORDER = "the errors are in several logs, and no line has a time: nothing tells which of them was the first"


def class_of(exception: Cause) -> str:
    return "gpu_oom" if memory_of(exception) == "gpu" else "rank_exception"


def fix_of(exception: Cause, otherwise: str) -> str:
    row = cause_in(exception)
    return MEMORY.get(memory_of(exception) or "") or (row.fix if row else "") or otherwise


def next_of(exception: Cause) -> str | None:
    """A command that shows more of what its text names."""
    row = cause_in(exception) if memory_of(exception) is None else None
    return row.next or None if row else None


def actions_of(root: Cause) -> tuple[Act, ...]:
    """As its text says; retry after an error of a network or service; all other exceptions are the code's."""
    if memory_of(root) == "host":
        return ("fix environment", "fix code")
    if memory_of(root) is None and (row := cause_in(root)):
        return row.actions
    return ("retry",) if root.type.rpartition(".")[2] in NETWORK_ERRORS else ("fix code",)
