"""Reads a black box at any instant, from another process: no garbage makes it raise."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsadiag.evidence.documents.files import open_evidence, read_begin
from nsadiag.evidence.ring.blackbox import HEADER_BYTES, RECORD_BYTES, Counter, Kind
from nsadiag.evidence.ring.header import Header, names_of, read_header
from nsadiag.evidence.ring.names import CHUNK

RECORD_DTYPE = np.dtype(
    [
        ("sequence", "<u8"),
        ("t_ns", "<i8"),
        ("name", "<u4"),
        ("thread", "<u4"),
        ("kind", "u1"),
        ("phase", "u1"),
        ("flags", "<u2"),
        ("step", "<u4"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("c", "<i8"),
        ("sequence_again", "<u8"),
    ]
)
FIELDS = ("sequence", "t_ns", "thread", "kind", "phase", "step", "a", "b")
MOST_BYTES = 64 << 20  # of a ring: a million events
assert RECORD_DTYPE.itemsize == RECORD_BYTES


class Label(NamedTuple):
    """Text that an event names in `c`: `group TAB file:line:function TAB details`, each part possibly empty."""

    group: str = ""
    site: str = ""
    detail: str = ""

    @classmethod
    def of(cls, text: str) -> Label:
        return cls(*text.split("\t", 2))


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
    events: npt.NDArray[np.void]
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
        return len(self.events) > 0 and int(self.events[0]["sequence"]) == 1

    def decode(self, records: npt.NDArray[np.void] | None = None) -> Iterator[Event]:
        """Those of its records, all where none are given, in their order."""
        records = self.events if records is None else records
        # In plain lists: a field of one record at a time costs ten times as much.
        columns = (records[field].tolist() for field in FIELDS)
        names, labels = self.names_of(records), self.labels_of(records)
        for fields, name, label in zip(zip(*columns, strict=True), names, labels, strict=True):
            yield Event._make((*fields, name, *label))

    def names_of(self, records: npt.NDArray[np.void]) -> list[str]:
        """Their names, in order."""
        return [self.names.get(name, "") for name in records["name"].tolist()]

    def labels_of(self, records: npt.NDArray[np.void]) -> list[Label]:
        """Their labels, in order; of a kind whose `c` is a number, none."""
        known = {c: Label.of(self.names.get(c, "")) for c in np.unique(records["c"]).tolist()}
        pairs = zip(records["c"].tolist(), records["kind"].tolist(), strict=True)
        return [Label() if kind == Kind.MEMORY else known[c] for c, kind in pairs]


def valid_records(raw: bytes | memoryview, capacity: int) -> npt.NDArray[np.void]:
    """Whole records in order of sequence; torn, empty and misplaced ones are left out."""
    usable = min(max(len(raw) - HEADER_BYTES, 0) // RECORD_BYTES, capacity)
    if usable == 0:
        return np.empty(0, RECORD_DTYPE)
    records = np.frombuffer(raw, RECORD_DTYPE, count=usable, offset=HEADER_BYTES)
    sequence = records["sequence"]
    whole = (sequence != 0) & (sequence == records["sequence_again"])
    # A whole record of another slot is garbage that happens to look right.
    whole &= (sequence - np.uint64(1)) % np.uint64(capacity) == np.arange(usable, dtype=np.uint64)
    found = records[whole]
    return np.asarray(found[np.argsort(found["sequence"])])


def read_blackbox(path: Path) -> Recording:
    """Everything that `path` holds. Never raises: what is missing is in `gaps`."""
    empty = np.empty(0, RECORD_DTYPE)
    try:
        raw = read_begin(path, MOST_BYTES)
    except OSError as error:
        return Recording(header=None, events=empty, gaps=(f"no recorder: {error.strerror}",))
    header = read_header(raw)
    if header is None:
        gap = f"{path.name} is not a recorder file"
        return Recording(header=None, events=empty, gaps=(gap,), is_damaged=True)
    events = valid_records(raw, header.capacity)
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
        whole = len(self._map) >= HEADER_BYTES
        ring = memoryview(self._map)[HEADER_BYTES:] if whole else b""
        self._records = np.frombuffer(ring, RECORD_DTYPE, count=usable)

    def last(self) -> npt.NDArray[np.void] | None:
        """A copy of the newest record, or None before the first."""
        sequence = self._records["sequence"]
        newest = int(sequence.argmax()) if len(sequence) else 0
        return self._records[newest : newest + 1].copy() if len(sequence) and sequence[newest] else None

    def since(self, sequence: int) -> npt.NDArray[np.void]:
        """Copies of the whole records after that one, in order; those that the ring has lost are not among them."""
        found = self._records[self._records["sequence"] > np.uint64(sequence)].copy()
        whole = found[found["sequence"] == found["sequence_again"]]
        return np.asarray(whole[np.argsort(whole["sequence"])])
