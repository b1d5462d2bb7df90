"""A file operation, or the save or load of a checkpoint, that the file system does not complete."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.blocked import BlockedRank, hung_ranks
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength

CHECKPOINT = ("torch.save", "torch.load", "torch.distributed.checkpoint")
OPENS = {"os_open", "_io_FileIO___init___impl"}
LOCKS = ("flock", "fcntl")  # a wait for the holder of the file's lock, not for the file
# Kernel functions that wait for the other end of a named pipe, as staging tools use them.
NAMED_PIPE = ("wait_for_partner", "fifo_open", "pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write")

FIX_OF_PIPE = (
    "The file is a named pipe whose other end has stopped: check the process that reads or fills it."
)


def _what(blocked: BlockedRank) -> str | None:
    """The operation and its file; None if it waits for no file."""
    state = blocked.state
    event = state.event or ""
    if state.call in LOCKS:
        return None
    if event.startswith(CHECKPOINT):
        return event
    path = state.descriptor.path if state.descriptor else ""
    if path and state.descriptor and state.descriptor.kind == "file":
        return f"{state.call or 'a call'} on {path}"
    if state.call == "openat" or not OPENS.isdisjoint(state.inner):
        return "open() of a file"
    return state.call or "a call into the kernel" if state.doing in ("kernel", "io") else None


def io_stall(case: Case) -> Iterator[Draft | Declined]:
    for blocked in hung_ranks(case):
        what = _what(blocked)
        if what is None or blocked.state.place is None:
            continue
        proc, at = blocked.capture.proc, at_line(blocked.state.place)
        in_kernel = f" in {proc.wchan}" if proc.wchan not in (None, "", "0") else ""
        yield inside_rank(
            case.cell,
            blocked,
            strength=Strength.STRONG if blocked.state.call or proc.state == "D" else Strength.LIKELY,
            summary=f"Rank {blocked.number} is blocked in {what}{at}: no byte was transferred between the two snapshots.",
            evidence={
                f"rank {blocked.number} is in {what},{at}{blocked.state.in_both_snapshots}": blocked.source,
                f"its main thread is in kernel state {proc.state}{in_kernel}, and its I/O counters did not change": f"{blocked.capture.source}/proc.json",
            },
            fix=FIX_OF_PIPE if proc.wchan in NAMED_PIPE else None,
        )
    yield from blocked_elsewhere(case, ("io", "kernel"), "does not read or write a file")


RULE = Rule(
    means={"io_stall": "A rank reads or writes a file, and the operation does not advance."},
    family="blocked",
    detected="The rank is in a read, write, open or sync of a file, in state D, or inside a checkpoint's save or load, and its I/O counters do not move.",
    fix="Check the file system of that path (dmesg, mount, df); save to a local disk first and copy from there in the background.",
    actions=("exclude host", "retry"),
    check=io_stall,
    needs=("stacks",),
    explained_by=("gil_held_native_call",),
    confused_with=("straggler_rank", "local_lock_deadlock", "missing_rank"),
)
