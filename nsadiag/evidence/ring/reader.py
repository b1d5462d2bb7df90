"""Reads a black box at any instant, from another process: no garbage makes it raise."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from nsadiag.evidence.documents.files import open_evidence, read_begin
from nsadiag.evidence.numbers import LONGER
from nsadiag.evidence.ring.blackbox import (
    COUNTER,
    COUNTERS_AT,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    Counter,
    Kind,
    Phase,
)
from nsadiag.evidence.ring.header import Header, names_of, read_header
from nsadiag.evidence.ring.names import CHUNK
from nsadiag.evidence.ring.spans import spans_in
from nsadiag.evidence.table import Table

COLUMNS = (
    "sequence",
    "t_ns",
    "name",
    "thread",
    "kind",
    "phase",
    "flags",
    "step",
    "a",
    "b",
    "c",
    "sequence_again",
)
SEQUENCE = struct.Struct("<Q")  # the first column alone
FIELDS = ("sequence", "t_ns", "thread", "kind", "phase", "step", "a", "b")
MOST_BYTES = 64 << 20  # of a ring: a million events
LOOKED_BACK = 4000  # events, for what is still open
LOOKED_AHEAD = 256  # slots, before all of them are looked at


class Label(NamedTuple):
    """Text that an event names in `c`: `group TAB file:line:function TAB details`, each part possibly empty."""

    group: str = ""
    site: str = ""
    detail: str = ""

    @classmethod
    def of(cls, text: str) -> Label:
        label = cls(*text.split("\t", 2))
        # Elements, ranks and keys that no recorder writes: nothing of them is believed.
        return label._replace(detail="") if LONGER.search(label.detail) else label


class Event(NamedTuple):
    """One event with its texts."""

    sequence: int
    t_ns: int
    thread: int
    kind: int
    phase: int
    step: int
    a: int
    b: int
    name: str  # empty where it was lost
    group: str
    site: str  # file:line:function
    detail: str


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The events that could be read, in order of sequence, and what could not be."""

    header: Header | None
    events: Table
    names: dict[int, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    is_damaged: bool = False  # the file holds less than the rank wrote into it

    @property
    def pid(self) -> int | None:
        """The process, and so the main thread, that wrote it."""
        return self.header.pid if self.header else None

    @property
    def is_whole(self) -> bool:
        """Whether the ring has not lost its beginning."""
        return len(self.events) > 0 and self.events["sequence"][0] == 1

    @cached_property
    def open_spans(self) -> tuple[Event, ...]:
        """Events that the main thread has begun and not ended, innermost first."""
        recent, pid = self.events[-LOOKED_BACK:], -1 if self.pid is None else self.pid
        own = recent[(recent["thread"] == pid) & (recent["phase"] != Phase.POINT)]
        # Paired before they are decoded: most have ended.
        places = [begin for begin, end in spans_in(own).items() if end is None]
        return tuple(self.decode(own.take(reversed(places))))

    def decode(self, records: Table | None = None) -> Iterator[Event]:
        """Those of its records, all where none are given, in their order."""
        records = self.events if records is None else records
        columns = (records[field] for field in FIELDS)
        names, labels = self.names_of(records), self.labels_of(records)
        for fields, name, label in zip(zip(*columns, strict=True), names, labels, strict=True):
            yield Event._make((*fields, name, *label))

    def names_of(self, records: Table) -> list[str]:
        """Their names, in order."""
        return [self.names.get(name, "") for name in records["name"]]

    def labels_of(self, records: Table) -> list[Label]:
        """Their labels, in order; of a kind whose `c` is a number, none."""
        known = {c: Label.of(self.names.get(c, "")) for c in records["c"].unique()}
        pairs = zip(records["c"], records["kind"], strict=True)
        return [Label() if kind == Kind.MEMORY else known[c] for c, kind in pairs]


def valid_records(raw: bytes | memoryview, capacity: int) -> Table:
    """Whole records in order of sequence; torn, empty and misplaced ones are left out."""
    usable = min(max(len(raw) - HEADER_BYTES, 0) // RECORD_BYTES, capacity)
    slots = memoryview(raw)[HEADER_BYTES : HEADER_BYTES + usable * RECORD_BYTES]
    # A whole record of another slot is garbage that happens to look right.
    found = [
        record
        for slot, record in enumerate(RECORD.iter_unpack(slots))
        if record[0] and record[0] == record[-1] and (record[0] - 1) % capacity == slot
    ]
    return _table_of(found)


def _table_of(records: list[tuple[int, ...]]) -> Table:
    """In order of sequence."""
    return Table.of_rows(sorted(records), COLUMNS)


def _newest_records(raw: bytes, capacity: int, most: int) -> Table:
    """As many of the newest whole records; the others are not unpacked."""
    usable = min(max(len(raw) - HEADER_BYTES, 0) // RECORD_BYTES, capacity)
    slots = memoryview(raw)[HEADER_BYTES : HEADER_BYTES + usable * RECORD_BYTES]
    newest = max(slots.cast("Q")[:: RECORD_BYTES // 8].tolist(), default=0)
    numbers = range(max(newest - most, 0) + 1, newest + 1)
    places = ((number, (number - 1) % capacity * RECORD_BYTES) for number in numbers)
    found = ((n, RECORD.unpack_from(slots, at)) for n, at in places if at + RECORD_BYTES <= len(slots))
    return _table_of([record for n, record in found if n == record[0] == record[-1]])


def read_blackbox(path: Path, *, newest: int | None = None) -> Recording:
    """Everything that `path` holds, or its `newest` events alone. Never raises: what is missing is in `gaps`."""
    empty = _table_of([])
    try:
        raw = read_begin(path, MOST_BYTES)
    except OSError as error:
        return Recording(header=None, events=empty, gaps=(f"no recorder: {error.strerror}",))
    header = read_header(raw)
    if header is None:
        gap = f"{path.name} is not a recorder file"
        return Recording(header=None, events=empty, gaps=(gap,), is_damaged=True)
    events = (
        valid_records(raw, header.capacity)
        if newest is None
        else _newest_records(raw, header.capacity, newest)
    )
    gaps = [_cut_short(path.name, len(raw), header)] if len(raw) < _whole_bytes(header) else []
    if lost := header.counters.get(Counter.NAMES_LOST, 0):
        gaps.append(f"{lost} names of events did not fit into the recorder")
    return Recording(
        header=header,
        events=events,
        names=names_of(path, raw, header),
        gaps=tuple(gaps),
        is_damaged=len(raw) < _whole_bytes(header),
    )


def has_grown(path: Path, sequence: int) -> bool:
    """Whether the ring holds an event after that one; also where that cannot be told. Two short reads, whatever it holds."""
    try:
        with open_evidence(path) as file:
            header = read_header(file.read(HEADER_BYTES))
            if header is None:
                return True
            file.seek(HEADER_BYTES + sequence % header.capacity * RECORD_BYTES)
            written = file.read(SEQUENCE.size)
    except OSError:
        return True
    return len(written) < SEQUENCE.size or SEQUENCE.unpack(written)[0] > sequence


def _whole_bytes(header: Header) -> int:
    """The size that the header gives the file: the space is taken at once, so that only a copy can have less."""
    return HEADER_BYTES + header.capacity * RECORD_BYTES + (header.chunks or 0) * CHUNK.size


def _cut_short(name: str, size: int, header: Header) -> str:
    """The sentence on a file that ends before its header says so, and on what is missing of it."""
    there = min(max(size - HEADER_BYTES, 0) // RECORD_BYTES, header.capacity)
    missing = (
        f"room for {header.capacity - there:,} of {header.capacity:,} events, and all names of events"
        if there < header.capacity
        else "names of events"
    )
    return f"{name} is cut short: {size:,} of {_whole_bytes(header):,} bytes, {missing} missing"


class Pulse:
    """Follows how far a ring has got, cheaply enough to ask several times a second."""

    def __init__(self, path: Path) -> None:
        with open_evidence(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = read_header(self._map[:HEADER_BYTES])
        if header is None:
            raise ValueError(f"{path} is not a recorder file")
        self.header = header
        usable = min(max(len(self._map) - HEADER_BYTES, 0) // RECORD_BYTES, header.capacity)
        self._ring = memoryview(self._map)[HEADER_BYTES:][: usable * RECORD_BYTES]
        self._sequences = self._ring.cast("Q")[:: RECORD_BYTES // 8]
        self._slot = 0  # of the newest record that was seen

    def last(self) -> Table | None:
        """A copy of the newest record, or None before the first."""
        slots = len(self._sequences)
        # As a rule it stands a few slots further on than the last time.
        ahead = [self._sequences[(self._slot + n) % slots] for n in range(min(LOOKED_AHEAD, slots))]
        newest = max(ahead, default=0)
        self._slot = (self._slot + ahead.index(newest)) % slots if newest else 0
        if slots > LOOKED_AHEAD and newest in ahead[LOOKED_AHEAD // 2 :]:
            every = self._sequences.tolist()
            newest = max(every)
            self._slot = every.index(newest)
        return _table_of([self._record(self._slot)]) if newest else None

    def steps(self) -> int:
        """Optimizer steps so far, by the counter in the header: a glance, whatever has been written."""
        return int(COUNTER.unpack_from(self._map, COUNTERS_AT + Counter.STEPS * COUNTER.size)[0])

    def since(self, sequence: int) -> Table:
        """Copies of the whole records after that one, in order; those that the ring has lost are not among them."""
        slots, newest = len(self._sequences), self._record(self._slot)[0] if self._sequences else 0
        numbers = range(max(sequence, newest - slots) + 1, newest + 1)
        found = (self._record((number - 1) % self.header.capacity) for number in numbers)
        return _table_of([record for record in found if sequence < record[0] == record[-1]])

    def _record(self, slot: int) -> tuple[int, ...]:
        return RECORD.unpack_from(self._ring, slot * RECORD_BYTES)
