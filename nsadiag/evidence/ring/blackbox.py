"""The black box: a ring of 64-byte events in a memory-mapped file, written by one rank, readable by anyone.

The pages belong to the kernel, so what was written survives SIGKILL of the writer. A record carries its
sequence number at both ends: a reader that finds two different numbers has met a half-written record. Nothing here
waits or locks: a signal handler runs between any two lines of the main thread, and may record something itself.
Standard library only: this file runs inside the user's ranks.
"""

from __future__ import annotations

import enum
import functools
import itertools
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsadiag.evidence.ownership import check_private
from nsadiag.evidence.ring.names import CHUNK, DEFAULT_CHUNKS, Names

MAGIC = b"NSADBOX2"
HEADER_BYTES = 4096
RECORD_BYTES = 64
DEFAULT_CAPACITY = 16384

# magic, header bytes, record bytes, capacity, pid, rank, world size, monotonic and wall ns at opening, host
HEADER = struct.Struct("<8sIIIqiiqq64s")
# sequence, t (monotonic ns), name, thread, kind, phase, flags, step, a, b, c, sequence again
RECORD = struct.Struct("<QqIIBBHIqqqQ")
assert RECORD.size == RECORD_BYTES
COUNTERS_AT = 256  # in the header
COUNTER = struct.Struct("<Q")
CHUNKS_AT = 512  # in the header: bytes of a chunk of names, chunks; they begin behind the ring
CHUNKS_HEADER = struct.Struct("<II")


class Kind(enum.IntEnum):
    """The kind of an event. Numbers are part of the file format: never reuse one."""

    PROCESS = 1  # END is written by the exit handlers; a = peak resident memory, KiB
    # An optimizer step was completed; a = how many so far, b = CPU time of the process, ns; name = "phases left out" where
    # it was a short one of a rank without peers, of which nothing else is recorded
    STEP = 2
    # The outermost module's forward; c = name "\tplace"; at its end a = elements of the tensors it was given
    FORWARD = 3
    # a = 1 if the loss is known not to be finite (a number on the CPU), c = name "\tplace"
    BACKWARD = 4
    MODULE = 5  # one module's forward; a = 1 when recomputed inside backward
    GRADIENT = 6  # a parameter's gradient has arrived; a = index of the parameter
    # A call into torch.distributed; a = collectives, or sends and receives, so far in that group, b = elements,
    # c = name "group\tplace", and what else tells one call from another as "group\tplace\tdetail":
    # "float32[8,2]", "root=0 float32[8,2]", "int64[9] int64[7] splits=5,4/3,4" (received/sent),
    # "to=1 tag=0 float32[3]", "from=any tag=3 float32[3]", several after "; ".
    # "irecv.wait" is the wait for the Work of that irecv (a and detail are the call's); "store.get" and
    # "store.wait" have the group "store" and the detail "key=...".
    COLLECTIVE = 7
    # Creation or destruction; a = groups created so far, c as above with the detail "ranks=0,1" or "ranks=all",
    # and " local" where its members alone take part.
    PROCESS_GROUP = 8
    GRAPH = 9  # size of the autograd graph; a = nodes counted, b = 1 if the count was capped
    EXCEPTION = 10
    WRAP = 11  # a model is being wrapped by DDP; c = name "\tplace"
    OPTIMIZER = 12  # inside optimizer.step()
    MODULE_BACKWARD = 13  # the backward pass has reached this module's outputs
    RECOMPUTE = 14  # activation checkpointing runs a function again; a = modules it entered, b = 1 if not the forward's
    BUCKET = (
        15  # DDP has made its buckets; name = "initial" or "rebuilt", a = how many, b = model in ddp.json
    )
    UNIT = 16  # one of FSDP's units; name = "unshard layers.0": also wait, reshard, reduce
    DATA = (
        17  # the loop waits for its next batch; name = type of the dataset, a = workers, c = name "\tplace"
    )
    IO = 18  # a checkpoint is written or read; name = "torch.save path", c = name "\tplace"
    MEMORY = 19  # a = allocated KiB on the device, b = resident KiB, c = peak on the device, KiB; name = when
    # A gradient scaler's step; name = type of the optimizer, a = 1 if it was skipped and -1 where only the device
    # knows, b = scale, 0 where only the device knows, c = name "\tplace"
    SCALER = 20
    # From BEGIN to END gradients are accumulated and not reduced; name = "no_sync" (DDP, FSDP1) or
    # "set_requires_gradient_sync" (FSDP2), c = name "\tplace"
    GRAD_SYNC = 21
    # The user's code told a framework to end the training; name = its flag ("should_stop"), c = name "\tplace"
    STOP = 22
    PHASE = 23  # what the user's code says it is at: `with nsadiag.phase("evaluate"):`; c = name "\tplace"


class Counter(enum.IntEnum):
    """The counters in the header. Numbers are part of the file format."""

    STEPS = 0  # optimizer steps completed
    GAPS = 1  # things that could not be observed, told in gaps.jsonl
    NAMES_LOST = 2  # names that found the table full


class Phase(enum.IntEnum):
    """A begin without its end is where a rank stands."""

    BEGIN = 1
    END = 2
    POINT = 3


class BlackBox:
    """The writing end, one a process: the ring, and the names behind it.

    Raises OSError if the file cannot be made or the disk has no room for all of it: the space is taken at
    once, since touching a page of a sparse file on a full disk would kill the rank with SIGBUS.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        world_size: int,
        capacity: int = DEFAULT_CAPACITY,
        chunks: int = DEFAULT_CHUNKS,
        memory: Path | None = None,
    ) -> None:
        """`memory`: a directory, say on /dev/shm, to hold the file; `path` is then a link to it."""
        names_at = HEADER_BYTES + capacity * RECORD_BYTES
        # Made under another name: a reader never maps a box without a header, or one that is made anew.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        held = memory / f"{rank:05d}.{os.getpid()}.bin" if memory else unfinished
        if memory is not None:
            check_private(memory)
            unfinished.symlink_to(held)
        try:
            self._map = _made_at_once(held, names_at + chunks * CHUNK.size)
        except OSError:
            unfinished.resolve().unlink(missing_ok=True)
            unfinished.unlink(missing_ok=True)
            raise
        self.names = Names(self._map, names_at, chunks)
        self.step = 0
        host = os.uname().nodename.encode()[:64]
        header = (MAGIC, HEADER_BYTES, RECORD_BYTES, capacity, os.getpid(), rank, world_size)
        HEADER.pack_into(self._map, 0, *header, time.monotonic_ns(), time.time_ns(), host)
        CHUNKS_HEADER.pack_into(self._map, CHUNKS_AT, CHUNK.size, chunks)
        unfinished.replace(path)
        self.emit = make_emit(self._map, capacity, self)
        # As `count`, which is a frame that every step would pay for.
        self.count_steps = functools.partial(
            COUNTER.pack_into, self._map, COUNTERS_AT + Counter.STEPS * COUNTER.size
        )

    def renumber(self, rank: int, world_size: int) -> None:
        """Corrects the header: it is another rank than it was taken for."""
        before = HEADER.unpack_from(self._map, 0)
        HEADER.pack_into(self._map, 0, *before[:5], rank, world_size, *before[7:])

    def count(self, counter: Counter, value: int) -> None:
        """Writes a counter into the header, where it outlives the events that the ring has lost."""
        COUNTER.pack_into(self._map, COUNTERS_AT + counter * COUNTER.size, value)

    def silence(self) -> None:
        """Makes every later event a no-op, through whatever copy of `emit`: a forked child must not write into its parent's ring."""
        self.emit.divert()
        self.names.silence()


_never_unmapped: list[mmap.mmap] = []


def _made_at_once(path: Path, size: int) -> mmap.mmap:
    """The file, mapped, with all its space taken. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
        # Before 3.13 the map holds a descriptor, and closes that number in the end, whoever has it by then.
        made = mmap.mmap(handle, size, **({"trackfd": False} if sys.version_info >= (3, 13) else {}))
        _never_unmapped.append(made)
        return made
    finally:
        os.close(handle)


def make_emit(ring: Any, capacity: int, stepper: Any) -> Any:
    """The function that writes one event into `ring`, a buffer with room for a header and `capacity` records.

    `stepper.step` is the step that events belong to. `divert` of the function makes it write where nobody looks;
    `marker(kind, name, a)` gives a hook that writes this one point whenever it is called, unless with None.
    """
    # A closure over locals: an attribute look-up less per event, of about ten, is measurable.
    pack, now = RECORD.pack_into, time.monotonic_ns
    tids: dict[int, int] = {}
    ident, native, point = threading.get_ident, threading.get_native_id, int(Phase.POINT)
    # next() on a count is one C call, hence atomic: two threads never get the same slot.
    next_sequence = itertools.count(1).__next__

    def emit(kind: int, phase: int, name: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        me = ident()
        tid = tids.get(me)
        if tid is None:
            tid = tids[me] = native()
        n = next_sequence()
        offset = HEADER_BYTES + (n - 1) % capacity * RECORD_BYTES
        pack(ring, offset, n, now(), name, tid, kind, phase, 0, stepper.step, a, b, c, n)

    def marker(kind: int, name: int, a: int = 0) -> Callable[[Any], None]:
        def mark(given: Any) -> None:
            if given is None:
                return
            me = ident()
            tid = tids.get(me)
            if tid is None:
                tid = tids[me] = native()
            n = next_sequence()
            offset = HEADER_BYTES + (n - 1) % capacity * RECORD_BYTES
            pack(ring, offset, n, now(), name, tid, kind, point, 0, stepper.step, a, 0, 0, n)

        return mark

    def divert() -> None:
        nonlocal ring, capacity
        ring, capacity = bytearray(HEADER_BYTES + RECORD_BYTES), 1

    emit.marker, emit.divert = marker, divert  # type: ignore[attr-defined]
    return emit
