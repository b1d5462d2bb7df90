"""Reads a black box at any instant, from another process: no garbage makes it raise."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nsadiag.evidence.blackbox import COUNTER, COUNTERS_AT, HEADER, HEADER_BYTES, MAGIC, RECORD_BYTES, Counter
from nsadiag.evidence.layout import read_json_lines

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
assert RECORD_DTYPE.itemsize == RECORD_BYTES


@dataclass(frozen=True, kw_only=True)
class Header:
    """Who wrote the box, and how its monotonic clock relates to wall time."""

    pid: int
    rank: int
    world_size: int
    capacity: int
    host: str
    monotonic_ns: int
    wall_ns: int
    counters: dict[Counter, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The events that could be read, in order of sequence, and what could not be."""

    header: Header | None
    events: npt.NDArray[np.void]
    names: dict[int, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()


def read_header(raw: bytes) -> Header | None:
    """The header, or None where the bytes are not one."""
    if len(raw) < HEADER.size:
        return None
    magic, header_bytes, record_bytes, capacity, pid, rank, world, mono, wall, host = HEADER.unpack_from(raw)
    if magic != MAGIC or header_bytes != HEADER_BYTES or record_bytes != RECORD_BYTES or capacity < 1:
        return None
    name = host.split(b"\0")[0].decode(errors="replace")
    return Header(
        pid=pid,
        rank=rank,
        world_size=world,
        capacity=capacity,
        host=name,
        monotonic_ns=mono,
        wall_ns=wall,
        counters=_counters(raw),
    )


def _counters(raw: bytes) -> dict[Counter, int]:
    places = {counter: COUNTERS_AT + counter * COUNTER.size for counter in Counter}
    return {c: COUNTER.unpack_from(raw, at)[0] for c, at in places.items() if len(raw) >= at + COUNTER.size}


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


def read_names(path: Path) -> dict[int, str]:
    """Number to name, as far as the side file goes."""
    rows = (row for row in read_json_lines(path) if isinstance(row, dict))
    return {row["id"]: str(row.get("name")) for row in rows if isinstance(row.get("id"), int)}


def read_blackbox(path: Path, names: Path | None = None) -> Recording:
    """Everything that `path` holds. Never raises: what is missing is in `gaps`."""
    empty = np.empty(0, RECORD_DTYPE)
    try:
        raw = path.read_bytes()
    except OSError as error:
        return Recording(header=None, events=empty, gaps=(f"no black box: {error.strerror}",))
    header = read_header(raw)
    if header is None:
        return Recording(header=None, events=empty, gaps=(f"{path.name} is not a black box",))
    known = read_names(names) if names else {}
    return Recording(header=header, events=valid_records(raw, header.capacity), names=known)


class Pulse:
    """Follows how far a ring has got, cheaply enough to ask several times a second."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = read_header(self._map[:HEADER_BYTES])
        if header is None:
            raise ValueError(f"{path} is not a black box")
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
