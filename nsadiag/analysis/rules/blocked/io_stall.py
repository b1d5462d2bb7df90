"""A rank reads or writes a file, saves or loads a checkpoint, and the file system gives no answer."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.blocked import BlockedRank, hung_ranks
from nsadiag.analysis.rules.drafts import inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength

CHECKPOINT = ("torch.save", "torch.load", "torch.distributed.checkpoint")
LOCKS = ("flock", "fcntl")  # waits for whoever holds the file's lock, not for the file
# Where the kernel waits for the other end of a named pipe, the way staging tools hand files over.
NAMED_PIPE = ("wait_for_partner", "fifo_open", "pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write")


def _what(blocked: BlockedRank) -> str | None:
    """The operation and its file; None if it waits in no file."""
    state = blocked.state
    event = state.event or ""
    if state.call in LOCKS:
        return None
    if event.startswith(CHECKPOINT):
        return event
    path = state.descriptor.path if state.descriptor else ""
    if path and state.descriptor and state.descriptor.kind == "file":
        return f"{state.call or 'a call'} on {path}"
    opens = state.call == "openat" or "os_open" in state.inner or "_io_FileIO___init___impl" in state.inner
    if opens:
        return "open() of a file"
    if state.doing in ("kernel", "io"):
        return f"{state.call or 'a call into the kernel'}"
    return None


def io_stall(case: Case) -> Iterator[Draft | Declined]:
    for blocked in hung_ranks(case):
        what = _what(blocked)
        if what is None or blocked.state.place is None:
            continue
        proc, at = blocked.capture.proc, locations.short(blocked.state.place)
        wchan = proc.wchan or ""
        pipe = wchan in NAMED_PIPE
        in_kernel = f" in {wchan}" if wchan not in ("", "0") else ""
        number = blocked.number
        yield inside_rank(
            case.cell,
            blocked,
            strength=Strength.STRONG if blocked.state.call or proc.state == "D" else Strength.LIKELY,
            summary=f"Rank {number} is blocked in {what} at {at}: not a byte was moved between the two snapshots.",
            evidence={
                f"rank {number} is in {what}, at {at}, in both snapshots": blocked.source,
                f"the kernel has its main thread in state {proc.state}{in_kernel}; its I/O counters stand": f"{blocked.capture.source}/proc.json",
            },
            fix="The file is a named pipe whose other end has stopped: see to the process that reads or fills it."
            if pipe
            else "See to the file system behind that path (dmesg, mount, df); save to a local disk first and copy from there in the background.",
        )
    yield from blocked_elsewhere(case, ("io", "kernel"), "in a read or write of a file")


RULE = Rule(
    name="io_stall",
    concludes=("io_stall",),
    means={"io_stall": "A rank is in a save or a load that does not advance."},
    family="blocked",
    detected="the rank waits in a read, write, open or sync of a file, in state D, or inside a checkpoint's save or load, and its I/O counters are flat",
    fix="Look at the file system: its server, a full quota, the process at the other end of a named pipe.",
    actions=("exclude host", "retry"),
    check=io_stall,
    needs=("stacks",),
    explained_by=("gil_held_native_call",),
    confused_with=("straggler_rank", "local_lock_deadlock", "missing_rank"),
)
